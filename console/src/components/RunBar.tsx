/** The bar below the input: run, cancel and send anyway; validity, idempotency key and deadline. */

import { useState } from "preact/hooks";
import { token } from "../api/client";
import { codeFor } from "../code";
import { exampleValue } from "../form/defaults";
import type { FoundProblem } from "../form/validate";
import { plural } from "../format";
import type { Json } from "../json/value";
import { type FormState, fieldOf, nearestField } from "../state/form";
import { deadline } from "../state/preferences";
import { runOf, start } from "../state/runs";
import { isLost, session } from "../state/session";
import { startStream } from "../state/streams";
import { Button, CopyButton } from "./Button";
import { Dialog } from "./Dialog";
import { fieldId } from "./form/context";
import { Icon } from "./Icon";
import { Menu } from "./Menu";
import { Elapsed } from "./StatusLine";

/** The id of the editor of the whole input. */
export const EDITOR_ID = "input-editor";

export interface Runner {
  press: () => Promise<void>;
  send: () => void;
  /** Show and focus the first problem. */
  focus: () => void;
  again: (input: Json) => Promise<void>;
  /** The input that awaits confirmation. */
  asking: Json | undefined;
  answer: (yes: boolean) => void;
}

/** Running an operation: validation, and confirmation of destructive operations. */
export function useRunner(form: FormState, showInput: () => void): Runner {
  const [asking, setAsking] = useState<Json | undefined>();
  const { operation } = form;
  const go = async (input: Json) => {
    if (operation.executes === false) await startStream(operation, input);
    else await start(operation, input);
    const refused = runOf(operation.id).peek()?.problem?.errors;
    if (refused && refused.length > 0) form.refused.value = refused;
  };
  const ask = async (input: Json) => {
    if (isLost.peek() || runOf(operation.id).peek()?.state === "running") return;
    if (operation.annotations?.destructiveHint === true) setAsking(input);
    else await go(input);
  };
  const focus = () => {
    showInput();
    focusProblem(form);
  };
  return {
    press: async () => {
      leaveField();
      if (form.validateNow()) await ask(form.value.peek());
      else focus();
    },
    send: () => void ask(form.value.peek()),
    focus,
    again: ask,
    asking,
    answer: (yes) => {
      const input = asking;
      setAsking(undefined);
      if (yes && input !== undefined) void go(input);
    },
  };
}

/** Some fields apply their text on blur: before a run from the keyboard, the field loses the focus for a moment. */
function leaveField(): void {
  const focused = document.activeElement;
  if (!(focused instanceof HTMLElement)) return;
  focused.blur();
  focused.focus({ preventScroll: true });
}

function focusProblem(form: FormState): void {
  if (form.jsonError.peek()) {
    form.view.value = "json";
    focusSoon(() => document.getElementById(EDITOR_ID));
    return;
  }
  const problems = form.all.peek();
  if (problems.length === 0) return;
  form.view.value = "form";
  focusSoon(() => firstOf(problems.map(controlOf)));
}

/** The control of a problem's field, or of the nearest group around it. */
function controlOf(problem: FoundProblem): HTMLElement | null {
  const find = (pointer: string) => document.getElementById(fieldId(pointer));
  const pointer = nearestField(problem, (each) => find(each) !== null);
  return pointer === undefined ? null : find(pointer);
}

/** The first element on the page. */
function firstOf(elements: (HTMLElement | null)[]): HTMLElement | null {
  const found = elements.filter((element) => element !== null);
  const isBefore = (one: Node, other: Node) => one.compareDocumentPosition(other) & Node.DOCUMENT_POSITION_FOLLOWING;
  return found.reduce((first, each) => (isBefore(each, first) ? each : first), found[0] as HTMLElement) ?? null;
}

/** Focus an element when it can be: an editor needs a few frames to open. */
function focusSoon(find: () => HTMLElement | null, frames = 30): void {
  requestAnimationFrame(() => {
    const found = find();
    found?.focus();
    if (frames > 0 && (!found || document.activeElement !== found)) focusSoon(find, frames - 1);
  });
}

const DEADLINES = [5, 10, 30, 60, 300];

export function RunBar(props: { form: FormState; runner: Runner; isPhone?: boolean }) {
  const { form, runner, isPhone } = props;
  const { operation } = form;
  const run = runOf(operation.id).value;
  const isRunning = run?.state === "running";
  return (
    <div class={isPhone ? "mbar" : "footbar"}>
      {isRunning ? (
        <Button look="d" icon="stop" class="p" onClick={() => run.abort()}>
          Cancel <Elapsed since={run.startedAt} />
          {!isPhone && <kbd>Ctrl .</kbd>}
        </Button>
      ) : (
        <Button look="p" disabled={isLost.value} onClick={() => void runner.press()}>
          {isPhone && run ? "Run again" : "Run"}
          {!isPhone && <kbd>Ctrl ↵</kbd>}
        </Button>
      )}
      <Validity form={form} runner={runner} />
      {isPhone && run && (
        <CopyButton
          label="Copy the call"
          disabled={!form.isReadable.value}
          text={() => codeFor("curl", operation, form.value.peek(), Boolean(token.value))}
        />
      )}
      {isPhone && <More form={form} runner={runner} />}
      {!isPhone && (
        <span class="right row t2">
          {operation.type === "mutation" && (
            <span class="idem">
              Idempotency key on <span class="t3">·</span>
            </span>
          )}
          <Deadline />
        </span>
      )}
      {runner.asking !== undefined && (
        <Dialog title={`Run ${operation.id}?`} close={() => runner.answer(false)}>
          <p class="mb">This operation is declared destructive: it may delete or overwrite data.</p>
          <div class="row">
            <Button look="d" onClick={() => runner.answer(true)}>
              Run it
            </Button>
            <Button onClick={() => runner.answer(false)}>Not now</Button>
          </div>
        </Dialog>
      )}
    </div>
  );
}

/** Fill the form with the operation's first example, or one made from its schema. */
export function fillExample(form: FormState): void {
  const { examples, inputSchema } = form.operation;
  form.reset(examples[0]?.input ?? exampleValue(inputSchema, true));
}

/** How long calls may take: the choices that the server allows. */
function deadlines(close: () => void, prefix = "") {
  const most = session.value?.limits?.deadlineSeconds ?? 60;
  return DEADLINES.filter((seconds) => seconds <= most).map((seconds) => (
    <button
      key={seconds}
      type="button"
      aria-current={seconds === deadline.value ? "true" : undefined}
      onClick={() => {
        deadline.value = seconds;
        close();
      }}
    >
      {prefix}
      {seconds} s
    </button>
  ));
}

function Deadline() {
  return (
    <Menu
      class="up end"
      button={
        <>
          Deadline {deadline.value} s<Icon name="down" small />
        </>
      }
    >
      {(close) => deadlines(close)}
    </Menu>
  );
}

/** A menu of the actions that a phone has no room for. */
function More(props: { form: FormState; runner: Runner }) {
  const { form, runner } = props;
  const other = form.view.value === "form" ? "json" : "form";
  const actions: [string, () => void][] = [
    [other === "json" ? "Input as JSON" : "Input as form", () => (form.view.value = other)],
    ["Example", () => fillExample(form)],
    ["Reset", () => form.reset()],
    ...(canSendAnyway(form) ? [["Send anyway", runner.send] as [string, () => void]] : []),
  ];
  return (
    <Menu class="up end" look="btn" label="More actions" button={<Icon name="more" />}>
      {(close) => (
        <>
          {actions.map(([label, act]) => (
            <button
              key={label}
              type="button"
              onClick={() => {
                close();
                act();
              }}
            >
              {label}
            </button>
          ))}
          {deadlines(close, "Deadline ")}
        </>
      )}
    </Menu>
  );
}

/** Whether problems are shown and the form can be sent despite them. */
function canSendAnyway(form: FormState): boolean {
  return form.showsAll.value && form.all.value.length > 0 && form.isReadable.value;
}

function Validity(props: { form: FormState; runner: Runner }) {
  const { form, runner } = props;
  const problems = form.all.value.length;
  if (form.jsonError.value) {
    return (
      <button type="button" class="row err" onClick={runner.focus}>
        <Icon name="error" small />
        JSON has an error
      </button>
    );
  }
  if (problems === 0) {
    return (
      <span class="row ok hide">
        <Icon name="check" small />
        Input is valid
      </span>
    );
  }
  const isShown =
    form.showsAll.value ||
    !form.isReadable.value ||
    form.all.value.some((problem) => form.messages(fieldOf(problem)).length > 0);
  if (!isShown) {
    return <span class="row t3">{plural(problems, "field")} to complete</span>;
  }
  return (
    <>
      <button type="button" class="row err" onClick={runner.focus}>
        <Icon name="error" small />
        {plural(problems, "problem")}
      </button>
      {canSendAnyway(form) && (
        <Button look="x" class="hide" onClick={runner.send}>
          Send anyway
        </Button>
      )}
    </>
  );
}
