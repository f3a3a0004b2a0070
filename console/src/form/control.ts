/** Choice of the control for a schema: a pure function, tested by a table of rules. */

import type { Schema } from "../api/types";
import type { Json } from "../json/value";
import { type Resolved, type Schemas, typesOf, withoutNull } from "./schema";

export interface Member {
  name: string;
  schema: Resolved;
  required: boolean;
  deprecated: boolean;
}

export interface Branch {
  label: string;
  schema: Resolved;
}

export type Control =
  | { kind: "text"; area: boolean; input: "text" | "email" | "url" | "password"; generate: boolean }
  | { kind: "date" | "time" | "date-time" }
  | { kind: "number"; integer: boolean }
  | { kind: "boolean"; three: boolean }
  | { kind: "enum"; style: "segmented" | "select" | "combobox"; options: Json[] }
  | { kind: "const"; value: Json }
  | { kind: "object"; members: Member[]; extra: Extra | undefined }
  | { kind: "tokens" }
  | { kind: "checks"; options: Json[] }
  | { kind: "list"; item: Schema }
  | { kind: "tuple"; items: Schema[]; rest: Schema | undefined }
  | { kind: "union"; branches: Branch[]; keyword: string; discriminator: string | undefined }
  | { kind: "bytes"; media: string }
  | { kind: "raw" };

/** Additional properties, with names chosen by the caller. */
export interface Extra {
  schema: Schema;
  patterns: string[];
}

export interface Described {
  control: Control;
  nullable: boolean;
  /** The schema without null. */
  schema: Resolved;
}

const SEGMENTS = 4;
const SELECTS = 12;
const AREA_NAMES = /(^|_|-)(body|text|content|message|description|comment|query|prompt|html|markdown|notes?)$/i;
const LONG = 200;

export interface Place {
  name?: string;
  required?: boolean;
  value?: Json | undefined;
}

/** Describe how a resolved schema is filled in. */
export function describe(given: Resolved, schemas: Schemas, place: Place = {}): Described {
  const { schema, nullable } = withoutNull(given, schemas);
  return { control: controlOf(schema, schemas, place), nullable, schema };
}

function controlOf(schema: Resolved, schemas: Schemas, place: Place): Control {
  if (schema.$raw === true) return { kind: "raw" };
  if ("const" in schema) return { kind: "const", value: schema.const as Json };
  if (Array.isArray(schema.enum)) return enumControl(schema.enum as Json[]);
  const union = unionOf(schema);
  if (union) return unionControl(schema, union.branches, union.keyword, schemas);
  const types = typesOf(schema);
  if (types.length > 1) {
    const branches = types.map((type) => ({ label: type, schema: { ...schema, type } }));
    return { kind: "union", branches, keyword: "type", discriminator: undefined };
  }
  switch (types[0]) {
    case "string":
      return textControl(schema, place);
    case "integer":
    case "number":
      return { kind: "number", integer: types[0] === "integer" };
    case "boolean":
      return { kind: "boolean", three: !place.required && schema.default === undefined };
    case "object":
      return objectControl(schema, schemas);
    case "array":
      return arrayControl(schema, schemas);
    case "null":
      return { kind: "const", value: null };
    default:
      return { kind: "raw" };
  }
}

/** Compile a pattern of a schema; undefined if JavaScript cannot: the server checks it. */
export function compiled(pattern: string): RegExp | undefined {
  try {
    return new RegExp(pattern, "u");
  } catch {
    return undefined;
  }
}

function enumControl(options: Json[]): Control {
  if (options.length === 1) return { kind: "const", value: options[0] as Json };
  const style = options.length <= SEGMENTS ? "segmented" : options.length <= SELECTS ? "select" : "combobox";
  return { kind: "enum", style, options };
}

function textControl(schema: Resolved, place: Place): Control {
  const format = schema.format;
  if (schema.contentEncoding === "base64" || format === "binary" || format === "byte" || format === "bytes") {
    return { kind: "bytes", media: String(schema.contentMediaType ?? "") };
  }
  if (format === "date" || format === "time" || format === "date-time") return { kind: format };
  const long = typeof schema.maxLength === "number" && schema.maxLength > LONG;
  const short = typeof schema.maxLength === "number" && !long;
  const lines = typeof place.value === "string" && place.value.includes("\n");
  const plain = format === undefined && (long || lines || (!short && AREA_NAMES.test(place.name ?? "")));
  const input = format === "email" ? "email" : format === "uri" || format === "url" ? "url" : "text";
  const secret = format === "password";
  return { kind: "text", area: plain, input: secret ? "password" : input, generate: format === "uuid" };
}

function objectControl(schema: Resolved, schemas: Schemas): Control {
  const required = new Set((schema.required as string[] | undefined) ?? []);
  const properties = (schema.properties ?? {}) as Record<string, Schema>;
  const members: Member[] = [];
  for (const [name, property] of Object.entries(properties)) {
    const resolved = schemas.resolve(property);
    if (property === false || (resolved.readOnly === true && !required.has(name))) continue;
    members.push({ name, schema: resolved, required: required.has(name), deprecated: resolved.deprecated === true });
  }
  for (const name of required) {
    if (!Object.hasOwn(properties, name)) members.push({ name, schema: {}, required: true, deprecated: false });
  }
  members.sort((left, right) => rank(left) - rank(right));
  return { kind: "object", members, extra: extraOf(schema, members.length > 0) };
}

function rank(member: Member): number {
  return member.deprecated && !member.required ? 2 : member.required ? 0 : 1;
}

/** Describe additional properties; undeclared ones that a schema merely allows need the JSON editor. */
function extraOf(schema: Resolved, hasMembers: boolean): Extra | undefined {
  const patterns = Object.keys((schema.patternProperties ?? {}) as object);
  const additional = schema.additionalProperties as Schema | undefined;
  if (patterns.length > 0) {
    const first = (schema.patternProperties as Record<string, Schema>)[patterns[0] as string];
    return { schema: first ?? true, patterns: additional === false ? patterns : [] };
  }
  if (additional === false || (additional === undefined && hasMembers)) return undefined;
  if (additional === true && hasMembers) return undefined;
  return { schema: additional ?? true, patterns: [] };
}

function arrayControl(schema: Resolved, schemas: Schemas): Control {
  const tuple = (schema.prefixItems ?? (Array.isArray(schema.items) ? schema.items : undefined)) as
    | Schema[]
    | undefined;
  if (tuple) {
    const rest = Array.isArray(schema.items) ? schema.additionalItems : schema.items;
    return { kind: "tuple", items: tuple, rest: rest === false ? undefined : (rest as Schema | undefined) };
  }
  const item = schemas.resolve(schema.items as Schema | undefined);
  if (Array.isArray(item.enum) && item.enum.length <= SELECTS) return { kind: "checks", options: item.enum as Json[] };
  const inner = describe(item, schemas);
  const isLine = inner.control.kind === "text" && !inner.control.area && inner.control.input !== "password";
  if (isLine && !inner.nullable && !item.enum) return { kind: "tokens" };
  return { kind: "list", item: (schema.items as Schema | undefined) ?? true };
}

function unionOf(schema: Resolved): { branches: Schema[]; keyword: string } | undefined {
  for (const keyword of ["oneOf", "anyOf"]) {
    const branches = schema[keyword];
    if (Array.isArray(branches) && branches.length > 0) return { branches: branches as Schema[], keyword };
  }
  return undefined;
}

/** Describe a union; branches that only add requirements to the same object are not a choice. */
function unionControl(schema: Resolved, given: Schema[], keyword: string, schemas: Schemas): Control {
  const { oneOf: _one, anyOf: _any, ...base } = schema;
  const resolved = given.map((branch) => schemas.resolve(branch));
  if (onlyRequires(resolved) && typesOf(base).includes("object")) return objectControl(base, schemas);
  const discriminator = (schema.discriminator as { propertyName?: string } | undefined)?.propertyName;
  const branches = resolved.map((branch, index) => {
    const whole = joined(base, branch);
    return { label: labelOf(branch, given[index], discriminator, index), schema: whole };
  });
  if (branches.length === 1 && branches[0]) return controlOf(branches[0].schema, schemas, {});
  const labels = new Set<string>();
  for (const [index, branch] of branches.entries()) {
    if (labels.has(branch.label)) branch.label = `${branch.label} ${index + 1}`;
    labels.add(branch.label);
  }
  return { kind: "union", branches, keyword, discriminator: discriminator ?? discriminatorOf(resolved) };
}

/** Whether branches only list required properties. */
export function onlyRequires(branches: Resolved[]): boolean {
  return branches.every((branch) =>
    Object.keys(branch).every((key) => key === "required" || key === "$name" || key === "not"),
  );
}

function joined(base: Resolved, branch: Resolved): Resolved {
  const { description: _d, title: _t, default: _f, $name: _n, discriminator: _x, ...shared } = base;
  if (Object.keys(shared).length === 0) return branch;
  const properties = { ...(shared.properties as object), ...(branch.properties as object) };
  const required = [...((shared.required as string[]) ?? []), ...((branch.required as string[]) ?? [])];
  const whole: Resolved = { ...shared, ...branch };
  if (Object.keys(properties).length > 0) whole.properties = properties;
  if (required.length > 0) whole.required = [...new Set(required)];
  return whole;
}

function labelOf(
  branch: Resolved,
  given: Schema | undefined,
  discriminator: string | undefined,
  index: number,
): string {
  const properties = branch.properties as Record<string, Resolved> | undefined;
  if (discriminator && properties) {
    const named = properties[discriminator];
    if (named?.const !== undefined) return String(named.const);
    if (Array.isArray(named?.enum) && named.enum.length === 1) return String(named.enum[0]);
  }
  if (typeof branch.title === "string" && branch.title) return branch.title;
  if ("const" in branch) return String(branch.const);
  if (Array.isArray(branch.enum) && branch.enum.length <= 2) return branch.enum.join(" | ");
  const reference =
    typeof given === "object" && typeof given.$ref === "string" ? given.$ref.split("/").at(-1) : branch.$name;
  if (typeof reference === "string" && reference) return reference;
  const types = typesOf(branch);
  if (types.length === 1 && types[0] === "array") return "array";
  return types.join(" | ") || `form ${index + 1}`;
}

/** Find a property with a different constant in every branch. */
function discriminatorOf(branches: Resolved[]): string | undefined {
  const first = branches[0]?.properties as Record<string, Resolved> | undefined;
  for (const name of Object.keys(first ?? {})) {
    const values = branches.map((branch) =>
      constantOf((branch.properties as Record<string, Resolved> | undefined)?.[name]),
    );
    if (values.every((value) => value !== undefined) && new Set(values).size === values.length) return name;
  }
  return undefined;
}

function constantOf(schema: Resolved | undefined): string | undefined {
  if (typeof schema !== "object") return undefined;
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  return Array.isArray(schema.enum) && schema.enum.length === 1 ? JSON.stringify(schema.enum[0]) : undefined;
}
