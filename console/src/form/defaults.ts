/** Initial values and examples of a form. */

import type { Schema } from "../api/types";
import { isObject, type Json, type JsonObject } from "../json/value";
import { describe, type Member, onlyRequires } from "./control";
import { exampleOf, type Resolved, Schemas, typesOf } from "./schema";

const DEEPEST = 6;
const FORMATS: Record<string, string> = {
  "date-time": "2026-01-31T12:00:00Z",
  date: "2026-01-31",
  time: "12:00:00Z",
  duration: "PT1H",
  email: "ada@example.com",
  uri: "https://example.com/",
  url: "https://example.com/",
  uuid: "9f1c2a34-5b6d-4e7f-8a90-b1c2d3e4f506",
  ipv4: "192.0.2.1",
  hostname: "example.com",
};

/** Return the value of an empty form: required defaults and constants only. */
export function initialValue(schema: Schema): Json {
  const schemas = new Schemas(schema);
  return initialOf(schemas.resolve(schema), schemas, 0) ?? {};
}

/** Return the initial value of a control; undefined if the user must enter it. */
export function initialOf(schema: Resolved, schemas: Schemas, depth: number): Json | undefined {
  if (schema.default !== undefined && !isHollow(schema.default, schema)) return schema.default as Json;
  const { control } = describe(schema, schemas);
  if (control.kind === "const") return control.value;
  if (control.kind === "object" && depth < DEEPEST) return initialMembers(control.members, schemas, depth);
  if (control.kind === "list" || control.kind === "tokens" || control.kind === "checks") return [];
  if (control.kind === "union" && control.branches[0]) return initialOf(control.branches[0].schema, schemas, depth + 1);
  return undefined;
}

function initialMembers(members: Member[], schemas: Schemas, depth: number): JsonObject {
  const value: JsonObject = {};
  for (const member of members) {
    if (!member.required) continue;
    const initial = initialOf(member.schema, schemas, depth + 1);
    if (initial !== undefined) value[member.name] = initial;
  }
  return value;
}

/** Whether an example is an empty object although properties are required, as in generated documents. */
function isHollow(value: unknown, schema: Resolved): boolean {
  const required = schema.required as string[] | undefined;
  return Boolean(required?.length) && isObject(value) && Object.keys(value).length === 0;
}

/** Return the required properties of the first alternative. */
function alternative(schema: Resolved, schemas: Schemas): string[] {
  const branches = [schema.anyOf ?? schema.oneOf ?? []].flat().map((branch) => schemas.resolve(branch as Schema));
  return branches.length > 0 && onlyRequires(branches) ? ((branches[0]?.required as string[] | undefined) ?? []) : [];
}

/** Return a value of the right type for a control that the user adds. */
export function addedValue(schema: Resolved, schemas: Schemas): Json {
  const initial = initialOf(schema, schemas, 0);
  if (initial !== undefined) return initial;
  const { control, nullable } = describe(schema, schemas);
  if (control.kind === "enum") return control.options[0] ?? null;
  if (control.kind === "number") return typeof schema.minimum === "number" ? schema.minimum : 0;
  if (control.kind === "boolean") return true;
  if (control.kind === "tuple") return control.items.map((item) => addedValue(schemas.resolve(item), schemas));
  if (control.kind === "raw") return nullable ? null : {};
  if (control.kind === "union" && control.branches[0]) return addedValue(control.branches[0].schema, schemas);
  return "";
}

/** Return an example of the whole input: the schema's examples and defaults, else values of the right type. */
export function exampleValue(schema: Schema, optional = false): Json {
  const schemas = new Schemas(schema);
  return guess(schemas.resolve(schema), schemas, 0, optional);
}

function guess(schema: Resolved, schemas: Schemas, depth: number, optional: boolean): Json {
  const offered = exampleOf(schema) ?? (schema.default as Json | undefined | null);
  if (offered !== undefined && offered !== null && !isHollow(offered, schema)) return offered;
  const { control, schema: inner } = describe(schema, schemas);
  switch (control.kind) {
    case "const":
      return control.value;
    case "enum":
      return control.options[0] ?? null;
    case "object":
      return guessObject(control.members, control.extra?.schema, inner, schemas, depth, optional);
    case "tokens":
    case "list":
      return guessList(inner, schemas, depth);
    case "checks":
      return control.options.slice(0, 1);
    case "tuple":
      return control.items.map((item) => guess(schemas.resolve(item), schemas, depth + 1, false));
    case "union":
      return control.branches[0] ? guess(control.branches[0].schema, schemas, depth + 1, false) : null;
    case "number":
      return guessNumber(inner, control.integer);
    case "boolean":
      return true;
    case "bytes":
      return { $bytes: "aGVsbG8=" };
    case "raw":
      return typesOf(inner).includes("object") ? {} : null;
    default:
      return guessText(inner);
  }
}

function guessObject(
  members: Member[],
  extra: Schema | undefined,
  schema: Resolved,
  schemas: Schemas,
  depth: number,
  optional: boolean,
): Json {
  const value: JsonObject = {};
  const also = alternative(schema, schemas);
  const isWanted = (member: Member) => member.required || also.includes(member.name);
  const wanted = members.filter((member) => isWanted(member) || (optional && depth === 0 && !member.deprecated));
  if (depth <= DEEPEST) {
    for (const member of wanted) value[member.name] = guess(member.schema, schemas, depth + 1, false);
  }
  const least = typeof schema.minProperties === "number" ? schema.minProperties : 0;
  for (const member of members) {
    if (Object.keys(value).length >= least) break;
    if (!(member.name in value)) value[member.name] = guess(member.schema, schemas, depth + 1, false);
  }
  for (let count = 1; Object.keys(value).length < least && extra !== undefined && count <= least; count++) {
    value[`key${count}`] = guess(schemas.resolve(extra), schemas, depth + 1, false);
  }
  return value;
}

function guessList(schema: Resolved, schemas: Schemas, depth: number): Json {
  const least = typeof schema.minItems === "number" ? schema.minItems : 1;
  if (depth > DEEPEST) return [];
  const item = guess(schemas.resolve(schema.items as Schema | undefined), schemas, depth + 1, false);
  const most = typeof schema.maxItems === "number" ? schema.maxItems : Number.POSITIVE_INFINITY;
  return Array.from({ length: Math.min(Math.max(1, least), most) }, () => item);
}

function guessNumber(schema: Resolved, integer: boolean): number {
  const step = typeof schema.multipleOf === "number" ? schema.multipleOf : integer ? 1 : 0;
  const low = Number(
    schema.minimum ?? (schema.exclusiveMinimum !== undefined ? Number(schema.exclusiveMinimum) + (step || 0.5) : 1),
  );
  const high = Number(
    schema.maximum ??
      (schema.exclusiveMaximum !== undefined
        ? Number(schema.exclusiveMaximum) - (step || 0.5)
        : Number.POSITIVE_INFINITY),
  );
  const value = Math.min(Math.max(1, low), high);
  if (!step) return value;
  const stepped = Math.ceil(value / step) * step;
  return stepped > high ? Math.floor(high / step) * step : stepped;
}

function guessText(schema: Resolved): string {
  const text = FORMATS[String(schema.format ?? "")] ?? "text";
  const least = typeof schema.minLength === "number" ? schema.minLength : 0;
  const most = typeof schema.maxLength === "number" ? schema.maxLength : text.length;
  return text.padEnd(least, "x").slice(0, Math.max(most, least));
}

/** Return a value without the secrets of its schema: passwords and write-only properties. */
export function withoutSecrets(schema: Schema, value: Json): Json {
  const schemas = new Schemas(schema);
  return strip(schemas.resolve(schema), schemas, value) ?? null;
}

function strip(schema: Resolved, schemas: Schemas, value: Json): Json | undefined {
  if (schema.writeOnly === true || schema.format === "password") return undefined;
  const branches = [
    schema,
    ...[schema.oneOf, schema.anyOf]
      .flat()
      .filter(Boolean)
      .map((branch) => schemas.resolve(branch as Schema)),
  ];
  if (Array.isArray(value)) {
    const item = branches.map((branch) => branch.items as Schema | undefined).find((each) => each !== undefined);
    return value.map((each) => strip(schemas.resolve(item), schemas, each) ?? null);
  }
  if (!isObject(value)) return value;
  const kept: JsonObject = {};
  for (const [name, member] of Object.entries(value)) {
    const found = branches
      .map((branch) => (branch.properties as Record<string, Schema> | undefined)?.[name])
      .filter((each) => each !== undefined);
    const resolved = found.map((each) => schemas.resolve(each));
    if (resolved.some((each) => each.writeOnly === true || each.format === "password")) continue;
    const inner = strip(resolved[0] ?? {}, schemas, member);
    if (inner !== undefined) kept[name] = inner;
  }
  return kept;
}
