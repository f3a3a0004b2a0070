/** Any JSON: a separate text field, for parts without a matching control. */

import { useEffect, useState } from "preact/hooks";
import { type JsonError, parseJson, writeJson } from "../../json/text";
import { equal, pointerOf } from "../../json/value";
import { type ControlProps, useForm } from "./context";

export function RawControl(props: ControlProps) {
  const form = useForm();
  const { path, value } = props;
  const [text, setText] = useState(value === undefined ? "" : writeJson(value, 2));
  const [error, setError] = useState<JsonError | undefined>();
  useEffect(() => {
    if (error) return;
    const read = text.trim() ? parseJson(text) : undefined;
    if (!equal(read, value)) setText(value === undefined ? "" : writeJson(value, 2));
  }, [value]);
  const change = (typed: string) => {
    setText(typed);
    if (!typed.trim()) {
      setError(undefined);
      return form.remove(path);
    }
    try {
      form.set(path, parseJson(typed));
      setError(undefined);
    } catch (caught) {
      setError(caught as JsonError);
    }
  };
  return (
    <>
      <textarea
        id={props.id}
        class={`in m ${props.isBad || error ? "bad" : ""}`}
        aria-label={`${props.name || "input"} as JSON`}
        aria-describedby={props.describedBy}
        spellcheck={false}
        rows={Math.min(16, Math.max(2, text.split("\n").length))}
        placeholder="JSON"
        value={text}
        onInput={(event) => change(event.currentTarget.value)}
        onBlur={() => form.touch(pointerOf(path))}
      />
      {error && (
        <div class="msg">
          JSON has an error at {error.line}:{error.column}: {error.message}
        </div>
      )}
    </>
  );
}
