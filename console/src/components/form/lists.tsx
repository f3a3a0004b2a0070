/** Arrays: tokens for strings, checkboxes for choices, numbered items for everything else. */

import { useState } from "preact/hooks";
import type { Schema } from "../../api/types";
import type { Control } from "../../form/control";
import { addedValue } from "../../form/defaults";
import { plural } from "../../format";
import { equal, type Json, pointerOf } from "../../json/value";
import { Button } from "../Button";
import { Icon } from "../Icon";
import { type ControlProps, useForm } from "./context";
import { Field } from "./Field";

const SHOWN = 50;

export function TokensControl(props: ControlProps) {
  const form = useForm();
  const [text, setText] = useState("");
  const { path, value } = props;
  const items = Array.isArray(value) ? value : [];
  const add = (typed: string) => {
    if (typed) form.set(path, [...items, typed]);
    setText("");
  };
  const keys = (event: KeyboardEvent) => {
    if ((event.key === "Enter" || event.key === ",") && !event.ctrlKey && !event.metaKey && text) {
      event.preventDefault();
      add(text.trim());
    } else if (event.key === "Backspace" && !text && items.length > 0) form.set(path, items.slice(0, -1));
  };
  return (
    <div class={`in toks ${props.isBad ? "bad" : ""}`}>
      {items.map((item, index) => (
        <span class="tok" key={index}>
          {typeof item === "string" ? item : JSON.stringify(item)}
          <button
            type="button"
            aria-label={`Remove ${String(item)}`}
            onClick={() =>
              form.set(
                path,
                items.filter((_, at) => at !== index),
              )
            }
          >
            <Icon name="close" small />
          </button>
        </span>
      ))}
      <input
        id={props.id}
        aria-describedby={props.describedBy}
        aria-label={`Add to ${props.name}`}
        autocomplete="off"
        value={text}
        placeholder={items.length === 0 ? "type and press Enter" : undefined}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={keys}
        onBlur={() => {
          add(text.trim());
          form.touch(pointerOf(path));
        }}
      />
    </div>
  );
}

export function ChecksControl(props: ControlProps & { options: Json[] }) {
  const form = useForm();
  const { path, options, value } = props;
  const items = Array.isArray(value) ? value : [];
  const change = (option: Json, isOn: boolean) => {
    const others = items.filter((item) => !equal(item, option));
    form.set(path, isOn ? [...others, option] : others);
  };
  return (
    <div
      class="adds"
      id={props.id}
      role="group"
      aria-label={props.name}
      aria-describedby={props.describedBy}
      tabIndex={-1}
      onFocusOut={() => form.touch(pointerOf(path))}
    >
      {options.map((option, index) => (
        <label class="check" key={index}>
          <input
            type="checkbox"
            checked={items.some((item) => equal(item, option))}
            onChange={(event) => change(option, event.currentTarget.checked)}
          />
          <code>{typeof option === "string" ? option : JSON.stringify(option)}</code>
        </label>
      ))}
    </div>
  );
}

export function ListControl(props: ControlProps & { item: Schema }) {
  const form = useForm();
  const { path, value } = props;
  const items = Array.isArray(value) ? value : [];
  const schema = form.schemas.resolve(props.item);
  const add = () => {
    form.set(path, [...items, addedValue(schema, form.schemas)]);
    requestAnimationFrame(() => document.getElementById(`field:${pointerOf([...path, items.length])}`)?.focus());
  };
  const move = (index: number, step: number) => {
    const moved = [...items];
    const [item] = moved.splice(index, 1);
    moved.splice(index + step, 0, item as Json);
    form.set(path, moved);
  };
  return (
    <div class="items" id={props.id} tabIndex={-1}>
      {items.slice(0, SHOWN).map((_, index) => (
        <div class="item" key={index}>
          <span class="ix">{index}</span>
          <Field
            path={[...path, index]}
            name={String(index)}
            schema={schema}
            required
            depth={props.depth + 1}
            compact
            bare
          />
          <span class="ends">
            {index > 0 && (
              <Button look="x" class="mv" icon="up" label={`Move item ${index} up`} onClick={() => move(index, -1)} />
            )}
            <Button
              look="x"
              icon="close"
              label={`Remove item ${index}`}
              onClick={() =>
                form.set(
                  path,
                  items.filter((__, at) => at !== index),
                )
              }
            />
          </span>
        </div>
      ))}
      {items.length > SHOWN && <MoreItems count={items.length - SHOWN} />}
      <div>
        <button type="button" class="add" onClick={add}>
          <Icon name="plus" small />
          Add item
        </button>
      </div>
    </div>
  );
}

function MoreItems(props: { count: number }) {
  return <p class="help">{plural(props.count, "more item")}: edit them as JSON.</p>;
}

export function TupleControl(props: ControlProps & { control: Extract<Control, { kind: "tuple" }> }) {
  const form = useForm();
  const { items } = props.control;
  const more = Array.isArray(props.value) ? props.value.length - items.length : 0;
  return (
    <div class="items" id={props.id} tabIndex={-1}>
      {items.map((item, index) => {
        const schema = form.schemas.resolve(item);
        const name = typeof schema.title === "string" ? schema.title : String(index);
        return (
          <Field
            key={index}
            path={[...props.path, index]}
            name={name}
            schema={schema}
            required
            depth={props.depth + 1}
          />
        );
      })}
      {more > 0 && <MoreItems count={more} />}
    </div>
  );
}
