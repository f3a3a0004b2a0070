/** One field: its name, type and help, the control for its schema, and its messages. */

import { useState } from "preact/hooks";
import { type Control, describe } from "../../form/control";
import { typeText } from "../../form/schema";
import type { Json } from "../../json/value";
import { pointerOf } from "../../json/value";
import { Button } from "../Button";
import { Icon } from "../Icon";
import { plainText } from "../Markdown";
import { BytesControl } from "./bytes";
import { type ControlProps, type FieldProps, fieldId, useForm } from "./context";
import { ChecksControl, ListControl, TokensControl, TupleControl } from "./lists";
import { ObjectControl } from "./objects";
import { RawControl } from "./raw";
import { BooleanControl, ConstControl, DateControl, EnumControl, NumberControl, TextControl } from "./scalars";
import { UnionControl, UnionSelector } from "./unions";

const NESTED = new Set(["object", "list", "tuple", "union", "raw"]);

export function Field(props: FieldProps) {
  const form = useForm();
  const { path, name, schema, required, depth, compact, bare, inner } = props;
  const pointer = pointerOf(path);
  const value = form.get(path);
  const described = describe(schema, form.schemas, { name, required, value });
  const { control, nullable } = described;
  const messages = form.messages(pointer);
  const id = fieldId(pointer);
  const help = bare ? undefined : helpOf(schema, required);
  const describedBy =
    [messages.length > 0 ? `${id}:msg` : "", help ? `${id}:help` : ""].filter(Boolean).join(" ") || undefined;
  const given: ControlProps = {
    ...props,
    schema: described.schema,
    id,
    value,
    describedBy,
    isBad: messages.length > 0,
  };
  const body =
    value === null && nullable ? (
      <output class="in fixed" id={id}>
        null
      </output>
    ) : (
      <AnyControl {...given} control={control} />
    );
  const isGroup = NESTED.has(control.kind);
  const group = { role: "group", "aria-labelledby": `${id}:label`, "aria-describedby": describedBy } as const;
  const actions = (
    <>
      {nullable && <NullToggle path={path} isNull={value === null} schema={described.schema} />}
      {!required && depth > 0 && value !== undefined && (
        <Button look="x" icon="close" label={`Remove ${name}`} onClick={() => form.remove(path)} />
      )}
    </>
  );
  const label = bare ? null : (
    <Label
      {...props}
      id={id}
      type={control.kind === "union" ? control.keyword : typeText(schema, form.schemas)}
      isGroup={isGroup}
      count={countOf(control, value)}
    >
      {control.kind === "union" && !compact && control.branches.length <= 4 && (
        <UnionSelector {...given} control={control} />
      )}
      {!compact && actions}
    </Label>
  );
  const notes = inner ? null : (
    <>
      {messages.length > 0 && (
        <div class="msg" id={`${id}:msg`}>
          <Icon name="error" small />
          <span>
            {messages.map((message) => (
              <div key={message}>{message}</div>
            ))}
          </span>
        </div>
      )}
      {help && <Help id={`${id}:help`} text={help} />}
    </>
  );
  if (compact && !bare) {
    return (
      <>
        {label}
        <div>
          <div class="row top">
            <div class="grow">{body}</div>
            {actions}
          </div>
          {notes}
        </div>
      </>
    );
  }
  return (
    <div class="field" {...(isGroup && !bare ? group : {})}>
      {label}
      {body}
      {notes}
    </div>
  );
}

function countOf(control: Control, value: Json | undefined): string | undefined {
  if ((control.kind !== "list" && control.kind !== "tuple") || !Array.isArray(value)) return undefined;
  return `${value.length} item${value.length === 1 ? "" : "s"}`;
}

function Label(
  props: FieldProps & {
    id: string;
    type: string;
    isGroup: boolean;
    count: string | undefined;
    children: preact.ComponentChildren;
  },
) {
  const name = props.isGroup ? (
    <span class="name" id={`${props.id}:label`}>
      {props.name}
    </span>
  ) : (
    <label class="name" for={props.id} id={`${props.id}:label`}>
      {props.name}
    </label>
  );
  return (
    <div class="lab">
      {name}
      {props.required && (
        <span class="req" title="required">
          *<span class="hidden"> required</span>
        </span>
      )}
      {props.schema.deprecated === true && <span class="chip w">deprecated</span>}
      {props.count && <span class="t3">{props.count}</span>}
      {props.children}
      {!props.compact && <span class="ty">{props.type}</span>}
    </div>
  );
}

function NullToggle(props: { path: FieldProps["path"]; isNull: boolean; schema: FieldProps["schema"] }) {
  const form = useForm();
  const change = () => (props.isNull ? form.remove(props.path) : form.set(props.path, null));
  return (
    <Button look="x" class={`m ${props.isNull ? "on" : ""}`} aria-pressed={props.isNull} onClick={change}>
      null
    </Button>
  );
}

function helpOf(schema: FieldProps["schema"], required: boolean): string | undefined {
  const parts = [];
  if (typeof schema.description === "string" && schema.description) parts.push(plainText(schema.description));
  const fallback = schema.default;
  if (fallback !== undefined && !required && typeof fallback !== "object") parts.push(`default ${String(fallback)}`);
  return parts.join(" · ") || undefined;
}

const LONG = 160;

function Help(props: { id: string; text: string }) {
  const [isWhole, setWhole] = useState(false);
  const { text } = props;
  const cut = text.length > LONG && !isWhole;
  return (
    <div class="help" id={props.id}>
      {cut ? `${text.slice(0, LONG).trimEnd()}… ` : text}
      {cut && (
        <button type="button" class="acc" onClick={() => setWhole(true)}>
          More
        </button>
      )}
    </div>
  );
}

function AnyControl(props: ControlProps & { control: Control }) {
  const { control, ...rest } = props;
  switch (control.kind) {
    case "text":
      return <TextControl {...rest} control={control} />;
    case "number":
      return <NumberControl {...rest} integer={control.integer} />;
    case "boolean":
      return <BooleanControl {...rest} three={control.three} />;
    case "enum":
      return <EnumControl {...rest} control={control} />;
    case "date":
    case "time":
    case "date-time":
      return <DateControl {...rest} kind={control.kind} />;
    case "const":
      return <ConstControl {...rest} fixed={control.value} />;
    case "object":
      return <ObjectControl {...rest} control={control} />;
    case "tokens":
      return <TokensControl {...rest} />;
    case "checks":
      return <ChecksControl {...rest} options={control.options} />;
    case "list":
      return <ListControl {...rest} item={control.item} />;
    case "tuple":
      return <TupleControl {...rest} control={control} />;
    case "union":
      return <UnionControl {...rest} control={control} />;
    case "bytes":
      return <BytesControl {...rest} media={control.media} />;
    default:
      return <RawControl {...rest} />;
  }
}
