/** Objects: required properties are shown, unset optional ones are buttons; additional properties are rows. */

import { useState } from "preact/hooks";
import { type Control, compiled, describe, type Extra, type Member } from "../../form/control";
import { addedValue } from "../../form/defaults";
import { isObject, pointerOf } from "../../json/value";
import { Button } from "../Button";
import { Icon } from "../Icon";
import { type ControlProps, useForm } from "./context";
import { Field } from "./Field";

const OPEN_SCALARS = 6;
const FOLD_DEPTH = 3;
const SCALARS = new Set(["text", "number", "boolean", "enum", "date", "time", "date-time"]);
const LINES = new Set(["text", "number", "date"]);

type ObjectProps = ControlProps & { control: Extract<Control, { kind: "object" }> };

export function ObjectControl(props: ObjectProps) {
  const form = useForm();
  const pointer = pointerOf(props.path);
  const isFolded = props.depth >= FOLD_DEPTH && !props.required && !form.opened.value.has(pointer);
  if (isFolded) {
    return (
      <button type="button" class="add" onClick={() => form.toggle(pointer)}>
        <Icon name="right" small />
        {isObject(props.value) ? `{${Object.keys(props.value).length}}` : "{ }"}
      </button>
    );
  }
  return <Members {...props} />;
}

function Members(props: ObjectProps) {
  const form = useForm();
  const { control, path, value, depth, compact } = props;
  const members = isObject(value) ? value : {};
  const scalars = control.members.filter(
    (member) => !member.required && SCALARS.has(describe(member.schema, form.schemas).control.kind),
  );
  const opensAll =
    depth === 0 &&
    scalars.length <= OPEN_SCALARS &&
    scalars.length === control.members.filter((member) => !member.required).length;
  const isOpen = (member: Member) =>
    member.required || Object.hasOwn(members, member.name) || (opensAll && !member.deprecated);
  const open = control.members.filter(isOpen);
  const unset = control.members.filter((member) => !isOpen(member));
  const known = new Set(control.members.map((member) => member.name));
  const others = Object.keys(members).filter((name) => !known.has(name));
  const fields = compact ? compactFields(props, open) : pairs(props, open, form.schemas);
  const isEmpty = control.members.length === 0 && !control.extra && others.length === 0;
  const content = (
    <>
      {isEmpty && depth === 0 && <p class="t3">This operation takes no input.</p>}
      {fields}
      {control.extra && <ExtraRows {...props} extra={control.extra} names={others} />}
      {!control.extra && others.length > 0 && (
        <p class="help">
          Also in the input:{" "}
          {others.map((name) => (
            <code key={name}>{name} </code>
          ))}
        </p>
      )}
      {unset.length > 0 && (
        <div class="adds">
          {depth === 0 && <span class="t3">Not set</span>}
          {unset.map((member) => (
            <button
              key={member.name}
              type="button"
              class={`add ${member.deprecated ? "t3 old" : ""}`}
              title={textOf(member)}
              onClick={() => add(member)}
            >
              <Icon name="plus" small />
              {member.name}
            </button>
          ))}
        </div>
      )}
    </>
  );
  function add(member: Member) {
    form.set([...path, member.name], addedValue(member.schema, form.schemas));
    const id = `field:${pointerOf([...path, member.name])}`;
    requestAnimationFrame(() => document.getElementById(id)?.focus());
  }
  if (depth === 0) return <div class="form">{content}</div>;
  return compact ? <div class="obj">{content}</div> : <div class="group">{content}</div>;
}

function textOf(member: Member): string | undefined {
  return typeof member.schema.description === "string" ? member.schema.description : undefined;
}

function fieldFor(props: ObjectProps, member: Member) {
  return (
    <Field
      key={member.name}
      path={[...props.path, member.name]}
      name={member.name}
      schema={member.schema}
      required={member.required}
      depth={props.depth + 1}
      {...(props.compact ? { compact: true } : {})}
    />
  );
}

function compactFields(props: ObjectProps, open: Member[]) {
  return open.map((member) => fieldFor(props, member));
}

/** Short required fields are shown two in a row. */
function pairs(props: ObjectProps, open: Member[], schemas: Parameters<typeof describe>[1]) {
  const rows = [];
  const isLine = (member: Member | undefined) => {
    if (!member?.required || props.depth > 0) return false;
    const { control } = describe(member.schema, schemas, { name: member.name });
    return LINES.has(control.kind) && !(control.kind === "text" && control.area);
  };
  for (let index = 0; index < open.length; index++) {
    const [one, other] = [open[index] as Member, open[index + 1]];
    if (isLine(one) && other && isLine(other)) {
      rows.push(
        <div class="two" key={one.name}>
          {fieldFor(props, one)}
          {fieldFor(props, other)}
        </div>,
      );
      index++;
    } else rows.push(fieldFor(props, one));
  }
  return rows;
}

/** Rows of a name and a value. */
function ExtraRows(props: ObjectProps & { extra: Extra; names: string[] }) {
  const form = useForm();
  const [name, setName] = useState("");
  const { extra, names, path } = props;
  const schema = form.schemas.resolve(extra.schema);
  const members = isObject(props.value) ? props.value : {};
  const fits = extra.patterns.length === 0 || extra.patterns.some((pattern) => compiled(pattern)?.test(name) ?? true);
  const isNew = name !== "" && !Object.hasOwn(members, name);
  const add = () => {
    if (!isNew || !fits) return;
    form.set([...path, name], addedValue(schema, form.schemas));
    setName("");
  };
  return (
    <div class="items">
      {names.map((each) => (
        <div class="item" key={each}>
          <span />
          <Field path={[...path, each]} name={each} schema={schema} required depth={props.depth + 1} />
          <span class="ends">
            <Button look="x" icon="close" label={`Remove ${each}`} onClick={() => form.remove([...path, each])} />
          </span>
        </div>
      ))}
      <div class="row">
        <input
          class={`in ${name && !fits ? "bad" : ""}`}
          aria-label={`New name in ${props.name || "the input"}`}
          placeholder="name"
          value={name}
          onInput={(event) => setName(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || event.ctrlKey || event.metaKey) return;
            event.preventDefault();
            add();
          }}
        />
        <button type="button" class="add" disabled={!isNew || !fits} onClick={add}>
          <Icon name="plus" small />
          Add
        </button>
      </div>
      {name && !fits && <div class="msg">the name does not match {extra.patterns.join(" or ")}</div>}
    </div>
  );
}
