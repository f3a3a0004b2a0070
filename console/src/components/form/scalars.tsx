/** Controls of single values: text, numbers, booleans, choices, dates, constants. */

import { useState } from "preact/hooks";
import type { Control } from "../../form/control";
import { ExactNumber, equal, isNumber, type Json, numberText, pointerOf } from "../../json/value";
import { Button } from "../Button";
import { Segmented } from "../Choices";
import { type ControlProps, useForm } from "./context";

function described(props: ControlProps) {
  const { id, describedBy, isBad, required } = props;
  return { id, "aria-describedby": describedBy, "aria-invalid": isBad, "aria-required": required };
}

function shared(props: ControlProps) {
  const { isBad } = props;
  return {
    ...described(props),
    "aria-label": props.bare ? (props.inner ? props.name : `item ${props.name}`) : undefined,
    class: `in${isBad ? " bad" : ""}`,
  };
}

function placeholderOf(props: ControlProps): string | undefined {
  const { schema, value } = props;
  if (value === null) return "null";
  if (value === "") return '""';
  if (schema.default !== undefined && !props.required) return `default ${JSON.stringify(schema.default)}`;
  return undefined;
}

export function TextControl(props: ControlProps & { control: Extract<Control, { kind: "text" }> }) {
  const form = useForm();
  const { control, path, value } = props;
  const text = typeof value === "string" ? value : value === undefined || value === null ? "" : JSON.stringify(value);
  const given = {
    ...shared(props),
    value: text,
    placeholder: placeholderOf(props),
    spellcheck: control.area,
    autocomplete: "off",
    onInput: (event: Event) => form.set(path, (event.currentTarget as HTMLInputElement).value),
    onBlur: () => form.touch(pointerOf(path)),
  };
  if (control.area) return <textarea {...given} rows={Math.min(12, Math.max(3, text.split("\n").length + 1))} />;
  const type = control.input === "password" ? "password" : "text";
  const mode = control.input === "email" || control.input === "url" ? control.input : undefined;
  const input =
    type === "password" ? (
      <input {...given} type="password" autocomplete="new-password" />
    ) : (
      <input {...given} type="text" inputMode={mode} />
    );
  if (!control.generate) return input;
  return (
    <div class="row">
      {input}
      <Button onClick={() => form.set(path, crypto.randomUUID())}>Generate</Button>
    </div>
  );
}

const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;

/** Parse a typed number and keep its digits; other text stays a string and fails validation. */
export function readNumber(text: string): Json {
  const trimmed = text.trim();
  if (!NUMBER.test(trimmed)) return text;
  return String(Number(trimmed)) === trimmed ? Number(trimmed) : new ExactNumber(trimmed);
}

export function NumberControl(props: ControlProps & { integer: boolean }) {
  const form = useForm();
  const { path, value } = props;
  const text = isNumber(value) ? numberText(value) : typeof value === "string" ? value : "";
  const change = (typed: string) => (typed === "" ? form.remove(path) : form.set(path, readNumber(typed)));
  return (
    <input
      {...shared(props)}
      inputMode={props.integer ? "numeric" : "decimal"}
      autocomplete="off"
      value={text}
      placeholder={placeholderOf(props)}
      onInput={(event) => change(event.currentTarget.value)}
      onBlur={() => form.touch(pointerOf(path))}
    />
  );
}

export function BooleanControl(props: ControlProps & { three: boolean }) {
  const form = useForm();
  const { path, value } = props;
  if (props.three) {
    const choose = (id: string) => (id === "unset" ? form.remove(path) : form.set(path, id === "true"));
    const now = value === true ? "true" : value === false ? "false" : "unset";
    const group = { ...described(props), onFocusOut: () => form.touch(pointerOf(path)) };
    const choices = ["unset", "true", "false"].map((id) => ({ id, label: id }));
    return <Segmented label={props.name} choices={choices} value={now} choose={choose} field={group} />;
  }
  return (
    <label class="check">
      <input
        type="checkbox"
        {...described(props)}
        checked={value === undefined ? props.schema.default === true : value === true}
        onChange={(event) => form.set(path, event.currentTarget.checked)}
        onBlur={() => form.touch(pointerOf(path))}
      />
      <span>{value === undefined ? "unset" : String(value)}</span>
    </label>
  );
}

const textOf = (option: Json) => (typeof option === "string" ? option : JSON.stringify(option));

export function EnumControl(props: ControlProps & { control: Extract<Control, { kind: "enum" }> }) {
  const form = useForm();
  const { control, path, value } = props;
  const at = control.options.findIndex((option) => equal(option, value));
  if (control.style === "segmented") {
    const choices = control.options.map((option, index) => ({ id: String(index), label: textOf(option) }));
    const choose = (id: string) => form.set(path, control.options[Number(id)] as Json);
    return (
      <Segmented
        label={props.name}
        class="m"
        choices={choices}
        value={at < 0 ? undefined : String(at)}
        choose={choose}
        field={{ ...described(props), onFocusOut: () => form.touch(pointerOf(path)) }}
      />
    );
  }
  if (control.style === "combobox") return <Combobox {...props} options={control.options} />;
  return (
    <select
      {...shared(props)}
      value={String(at)}
      onChange={(event) => {
        const index = Number(event.currentTarget.value);
        if (index < 0) form.remove(path);
        else form.set(path, control.options[index] as Json);
      }}
      onBlur={() => form.touch(pointerOf(path))}
    >
      <option value="-1">{value === undefined || at >= 0 ? "–" : textOf(value)}</option>
      {control.options.map((option, index) => (
        <option key={index} value={String(index)}>
          {textOf(option)}
        </option>
      ))}
    </select>
  );
}

/** A choice of many, filtered by typing. */
function Combobox(props: ControlProps & { options: Json[] }) {
  const form = useForm();
  const list = `${props.id}:list`;
  const { path, value } = props;
  const read = (text: string) => props.options.find((option) => textOf(option) === text) ?? text;
  return (
    <>
      <input
        {...shared(props)}
        list={list}
        autocomplete="off"
        value={value === undefined ? "" : textOf(value)}
        placeholder={placeholderOf(props) ?? `one of ${props.options.length}`}
        onInput={(event) => {
          const text = event.currentTarget.value;
          if (text) form.set(path, read(text));
          else form.remove(path);
        }}
        onBlur={() => form.touch(pointerOf(path))}
      />
      <datalist id={list}>
        {props.options.map((option, index) => (
          <option key={index} value={textOf(option)} />
        ))}
      </datalist>
    </>
  );
}

export function DateControl(props: ControlProps & { kind: "date" | "time" | "date-time" }) {
  const form = useForm();
  const { kind, path, value } = props;
  const text = typeof value === "string" ? value : "";
  const [zone, setZone] = useState(() => /(Z|[+-]\d\d:\d\d)$/.exec(text)?.[1] ?? "Z");
  const local = text.replace(/(Z|[+-]\d\d:\d\d)$/, "");
  const write = (next: string, offset: string) => {
    if (!next) form.remove(path);
    else if (kind === "date") form.set(path, next);
    else form.set(path, `${next.length === 16 || next.length === 5 ? `${next}:00` : next}${offset}`);
  };
  const type = kind === "date-time" ? "datetime-local" : kind;
  return (
    <div class="row">
      <input
        {...shared(props)}
        type={type}
        step={kind === "date" ? undefined : 1}
        value={local}
        onInput={(event) => write(event.currentTarget.value, zone)}
        onBlur={() => form.touch(pointerOf(path))}
      />
      {kind !== "date" && (
        <select
          class="in"
          style={{ width: "auto" }}
          aria-label="Time zone"
          value={zone}
          onChange={(event) => {
            setZone(event.currentTarget.value);
            write(local, event.currentTarget.value);
          }}
        >
          {[...new Set(["Z", localZone(), zone])].map((each) => (
            <option key={each} value={each}>
              {each === "Z" ? "UTC" : each}
            </option>
          ))}
        </select>
      )}
    </div>
  );
}

function localZone(): string {
  const minutes = -new Date().getTimezoneOffset();
  if (minutes === 0) return "Z";
  const part = (value: number) => String(Math.floor(Math.abs(value))).padStart(2, "0");
  return `${minutes < 0 ? "-" : "+"}${part(minutes / 60)}:${part(minutes % 60)}`;
}

export function ConstControl(props: ControlProps & { fixed: Json }) {
  return (
    <output id={props.id} class="in fixed">
      {JSON.stringify(props.fixed)}
    </output>
  );
}
