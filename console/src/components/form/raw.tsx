/** Any JSON: an editor inside the form, for parts without a matching control. */

import { useEffect, useState } from "preact/hooks";
import { type JsonError, parseJson, writeJson } from "../../json/text";
import { equal, pointerOf } from "../../json/value";
import { JsonEditor } from "../JsonEditor";
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
    if (!typed.trim()) return setError(undefined);
    try {
      form.set(path, parseJson(typed));
      setError(undefined);
    } catch (caught) {
      setError(caught as JsonError);
    }
  };
  // Not while one types: the field of a removed value is gone.
  const leave = () => {
    if (!text.trim()) form.remove(path);
    form.touch(pointerOf(path));
  };
  return (
    <>
      <JsonEditor
        id={props.id}
        class={`inline ${props.isBad ? "bad" : ""}`}
        label={`${props.name || "input"} as JSON`}
        text={text}
        problems={error && [{ detail: error.message }]}
        change={change}
        leave={leave}
      />
      {error && (
        <div class="msg" role="status">
          JSON has an error at {error.line}:{error.column}: {error.message}
        </div>
      )}
    </>
  );
}
