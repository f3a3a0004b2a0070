/** Input at the left, result at the right: run, cancel, history. */

import { useSignal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { writeJson } from "../json/text";
import { useShortcuts } from "../keyboard";
import { lazy } from "../lazy";
import type { FormState } from "../state/form";
import { history } from "../state/history";
import { divider } from "../state/preferences";
import { runOf, showPast } from "../state/runs";
import { Button } from "./Button";
import { Segmented } from "./Choices";
import { CodeTabs } from "./CodeTabs";
import { SchemaForm } from "./form/SchemaForm";
import { HistoryBar } from "./HistoryBar";
import { JsonEditor } from "./JsonEditor";
import { Empty } from "./Notice";
import { ProblemList } from "./ProblemList";
import { EDITOR_ID, fillExample, RunBar, type Runner, useRunner } from "./RunBar";
import { StatusLine } from "./StatusLine";

const loadResult = () => import("./Result").then((loaded) => loaded.Result);
const Result = lazy(loadResult);

export function TryPanel(props: { form: FormState }) {
  const { form } = props;
  const { operation } = form;
  const run = runOf(operation.id).value;
  const side = useSignal<"input" | "result">("input");
  const runner = useRunner(form, () => (side.value = "input"));
  const [isPhone, setPhone] = useState(() => matchMedia("(max-width: 640px)").matches);
  useEffect(() => {
    const query = matchMedia("(max-width: 640px)");
    const change = () => setPhone(query.matches);
    query.addEventListener("change", change);
    return () => query.removeEventListener("change", change);
  }, []);
  useEffect(() => {
    loadResult().catch(() => {}); // before the first response; a failure is shown with the result
  }, []);
  useEffect(() => {
    if (run) side.value = "result";
  }, [run?.id]);
  const past = history.value.filter((call) => call.operationId === operation.id);
  const step = (by: number) => {
    // The state when the key is pressed, which may be newer than the last rendered one.
    const shown = runOf(operation.id).peek();
    const past = history.peek().filter((call) => call.operationId === operation.id);
    const at = past.findIndex((call) => call.id === (shown?.requestId || shown?.id));
    const next = past[at < 0 ? 0 : at - by];
    if (next) showPast(operation, next);
  };
  useShortcuts(
    {
      run: () => void runner.press(),
      cancel: () => run?.abort(),
      toggleView: () => (form.view.value = form.view.peek() === "form" ? "json" : "form"),
      step,
    },
    [run],
  );
  // A hidden input stays mounted and keeps its text.
  const showsInput = !isPhone || side.value === "input";
  const showsResult = !isPhone || side.value === "result";
  return (
    <>
      {isPhone && (
        <div class="bar">
          <Segmented
            class="w"
            label="Input or result"
            value={side.value}
            choose={(id) => (side.value = id)}
            choices={[
              { id: "input", label: "Input" },
              { id: "result", label: "Result" },
            ]}
          />
        </div>
      )}
      <div
        class="split"
        role="tabpanel"
        aria-label="Try"
        style={isPhone ? {} : { "--left": `${divider.value}fr`, "--right": `${100 - divider.value}fr` }}
      >
        <InputPane form={form} runner={runner} isHidden={!showsInput} />
        {!isPhone && <Divider />}
        {showsResult && (
          <section class="pane" aria-label="Result">
            {run ? (
              <>
                <div class="bar">
                  <StatusLine run={run} />
                </div>
                <Result run={run} />
              </>
            ) : (
              <div class="body">
                <Empty>The result appears here. Ctrl-Enter runs the operation.</Empty>
              </div>
            )}
            <HistoryBar
              operation={operation}
              past={past}
              shown={run?.requestId || run?.id}
              rerun={() => run && void runner.again(run.input)}
            />
          </section>
        )}
      </div>
      {isPhone && <RunBar form={form} runner={runner} isPhone />}
    </>
  );
}

function InputPane(props: { form: FormState; runner: Runner; isHidden: boolean }) {
  const { form } = props;
  const view = form.view.value;
  return (
    <section class="pane" aria-label="Input" hidden={props.isHidden}>
      <div class="bar hide">
        <h2>Input</h2>
        <Segmented
          label="Input as"
          value={view}
          choose={(id) => (form.view.value = id)}
          choices={[
            { id: "form", label: "Form" },
            { id: "json", label: "JSON" },
          ]}
        />
        <span class="right row">
          <Button look="x" onClick={() => fillExample(form)}>
            Example
          </Button>
          <Button look="x" onClick={() => form.reset()}>
            Reset
          </Button>
        </span>
      </div>
      <div class="body">
        {view === "form" ? (
          <SchemaForm form={form} />
        ) : (
          <>
            <JsonEditor
              id={EDITOR_ID}
              label="Input as JSON"
              text={form.jsonError.value?.text ?? writeJson(form.value.value, 2)}
              problems={form.marks.value}
              change={(text) => form.setText(text)}
            />
            {form.jsonError.value && (
              <div class="msg" role="status">
                {form.jsonError.value.detail}
              </div>
            )}
          </>
        )}
      </div>
      <ProblemList form={form} />
      <CodeTabs form={form} />
      <RunBar form={form} runner={props.runner} />
    </section>
  );
}

/** The divider between the panes, moved by dragging or with the arrow keys. */
function Divider() {
  const drag = (event: PointerEvent) => {
    const line = event.currentTarget as HTMLElement;
    const box = line.parentElement?.getBoundingClientRect();
    if (!box || !line.hasPointerCapture(event.pointerId)) return;
    divider.value = clamp(((event.clientX - box.left) / box.width) * 100);
  };
  const keys = (event: KeyboardEvent) => {
    const by = event.key === "ArrowLeft" ? -2 : event.key === "ArrowRight" ? 2 : 0;
    if (by) divider.value = clamp(divider.value + by);
  };
  return (
    <div
      class="divider"
      role="separator"
      aria-orientation="vertical"
      aria-label="Width of the input"
      aria-valuenow={Math.round(divider.value)}
      aria-valuemin={25}
      aria-valuemax={75}
      tabIndex={0}
      style={{ left: `${divider.value}%` }}
      onPointerDown={(event) => event.currentTarget.setPointerCapture(event.pointerId)}
      onPointerMove={drag}
      onKeyDown={keys}
    />
  );
}

function clamp(value: number): number {
  return Math.min(75, Math.max(25, value));
}
