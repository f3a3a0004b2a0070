/** Any JSON: an editor inside the form, for parts without a matching control. */

import { useLayoutEffect, useState } from "preact/hooks";
import { type JsonError, parseJson, writeJson } from "../../json/text";
import { equal, type Json, pointerOf } from "../../json/value";
import { JsonEditor } from "../JsonEditor";
import { type ControlProps, useForm } from "./context";

export function RawControl(props: ControlProps) {
  const form = useForm();
  const { path, value } = props;
  const pointer = pointerOf(path);
  const [text, setText] = useState(textOf(value));
  const error = form.unreadable.value.get(pointer);
  // Invalid text is dropped with its field, and when the value changes elsewhere, for example because items were moved.
  useLayoutEffect(() => {
    if (!stands(text, value)) setText(textOf(value));
    return () => form.setUnreadable(pointer);
  }, [value]);
  const change = (typed: string) => {
    setText(typed);
    if (!typed.trim()) return form.setUnreadable(pointer);
    try {
      form.set(path, parseJson(typed));
      form.setUnreadable(pointer);
    } catch (caught) {
      form.setUnreadable(pointer, caught as JsonError);
    }
  };
  // An empty text removes the value and its field: not while the user types, but when the field loses the focus.
  const leave = () => {
    if (!text.trim()) form.remove(path);
    form.touch(pointer);
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
          {error.detail}
        </div>
      )}
    </>
  );
}

function textOf(value: Json | undefined): string {
  return value === undefined ? "" : writeJson(value, 2);
}

/** Whether a text is JSON equal to a value; an empty text equals no value. */
function stands(text: string, value: Json | undefined): boolean {
  try {
    return equal(text.trim() ? parseJson(text) : undefined, value);
  } catch {
    return false;
  }
}
