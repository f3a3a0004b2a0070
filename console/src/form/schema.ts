/** JSON Schema for the form: references, allOf, nullable types and unions are resolved to one description. */

import type { Schema, SchemaObject } from "../api/types";
import { isObject, type Json, pointerParts } from "../json/value";

export type Resolved = SchemaObject;

/** Resolver of references within one document. */
export class Schemas {
  constructor(readonly root: Schema) {}

  /** The schema without references and allOf at its top; `$name` is the name of its definition. */
  resolve(schema: Schema | undefined, seen: readonly string[] = []): Resolved {
    if (schema === undefined || schema === true) return {};
    if (schema === false) return { not: {} };
    let result = schema;
    const reference = result.$ref;
    if (typeof reference === "string") {
      if (seen.includes(reference)) return {};
      const target = this.resolve(this.target(reference), [...seen, reference]);
      const { $ref: _, ...own } = result;
      result = mergeSchemas({ $name: reference.split("/").at(-1), ...target }, own) ?? {
        ...target,
        ...own,
        $raw: true,
      };
    }
    const all = result.allOf;
    if (!Array.isArray(all)) return result;
    const { allOf: _, ...rest } = result;
    let merged: Resolved | undefined = rest;
    for (const part of all as Schema[]) {
      merged = merged && mergeSchemas(merged, this.resolve(part, seen));
    }
    return merged ?? { ...rest, allOf: all, $raw: true };
  }

  target(reference: string): Schema | undefined {
    if (!reference.startsWith("#")) return undefined;
    let node: unknown = this.root;
    for (const part of pointerParts(decodeURIComponent(reference))) {
      if (typeof node !== "object" || node === null) return undefined;
      node = (node as Record<string, unknown>)[part];
    }
    return node as Schema | undefined;
  }
}

const LIMITS: Record<string, "max" | "min"> = {
  minimum: "max",
  exclusiveMinimum: "max",
  minLength: "max",
  minItems: "max",
  minProperties: "max",
  maximum: "min",
  exclusiveMaximum: "min",
  maxLength: "min",
  maxItems: "min",
  maxProperties: "min",
};
const DESCRIPTIVE = new Set([
  "title",
  "description",
  "default",
  "example",
  "examples",
  "deprecated",
  "readOnly",
  "writeOnly",
  "$name",
  "$comment",
  "$defs",
  "$id",
  "$schema",
  "format",
  "contentMediaType",
]);

/** Merge two schemas; undefined if they cannot be merged. */
export function mergeSchemas(left: Resolved, right: Resolved): Resolved | undefined {
  const merged: Resolved = { ...left };
  for (const [keyword, value] of Object.entries(right)) {
    if (!(keyword in merged) || DESCRIPTIVE.has(keyword)) merged[keyword] = value;
    else if (keyword === "properties") merged.properties = mergeProperties(merged.properties, value);
    else if (keyword === "required")
      merged.required = [...new Set([...(merged.required as string[]), ...(value as string[])])];
    else if (keyword === "type") {
      const both = typesOf(merged).filter((type) => typesOf(right).includes(type));
      if (both.length === 0) return undefined;
      merged.type = both.length === 1 ? both[0] : both;
    } else if (keyword === "enum") {
      merged.enum = (merged.enum as unknown[]).filter((item) => JSON.stringify(value).includes(JSON.stringify(item)));
    } else if (LIMITS[keyword]) merged[keyword] = Math[LIMITS[keyword]](Number(merged[keyword]), Number(value));
    else if (JSON.stringify(merged[keyword]) !== JSON.stringify(value)) return undefined;
  }
  return merged;
}

function mergeProperties(left: unknown, right: unknown): Record<string, Schema> {
  const merged = { ...(left as Record<string, Schema>) };
  for (const [name, schema] of Object.entries(right as Record<string, Schema>)) {
    const known = merged[name];
    merged[name] =
      known === undefined || known === true ? schema : schema === true ? known : { allOf: [known, schema] };
  }
  return merged;
}

/** Return the types that a schema declares or implies by its keywords; empty for any. */
export function typesOf(schema: Resolved): string[] {
  if (typeof schema.type === "string") return [schema.type];
  if (Array.isArray(schema.type)) return schema.type as string[];
  if (schema.properties || schema.required || schema.additionalProperties) return ["object"];
  if (schema.items || schema.prefixItems) return ["array"];
  if (Array.isArray(schema.enum)) return [...new Set(schema.enum.map(typeOfValue))];
  if ("const" in schema) return [typeOfValue(schema.const)];
  if (schema.pattern || schema.maxLength || schema.minLength) return ["string"];
  if (schema.minimum !== undefined || schema.maximum !== undefined) return ["number"];
  return [];
}

export function typeOfValue(value: unknown): string {
  if (value === null) return "null";
  if (Array.isArray(value)) return "array";
  if (typeof value === "number") return Number.isInteger(value) ? "integer" : "number";
  return typeof value === "object" ? (isObject(value) ? "object" : "number") : typeof value;
}

/** A schema without null, and whether it allowed null. */
export function withoutNull(schema: Resolved, schemas: Schemas): { schema: Resolved; nullable: boolean } {
  if (schema.nullable === true) return { schema: omit(schema, "nullable"), nullable: true };
  if (Array.isArray(schema.type) && schema.type.includes("null")) {
    const others = (schema.type as string[]).filter((type) => type !== "null");
    if (others.length === 0) return { schema, nullable: false };
    const rest: Resolved = { ...schema, type: others.length === 1 ? others[0] : others };
    if (Array.isArray(schema.enum)) rest.enum = schema.enum.filter((item) => item !== null);
    return { schema: rest, nullable: true };
  }
  for (const keyword of ["anyOf", "oneOf"]) {
    const branches = schema[keyword];
    if (!Array.isArray(branches)) continue;
    const others = (branches as Schema[]).filter((branch) => !isNull(schemas.resolve(branch)));
    if (others.length === branches.length || others.length === 0) continue;
    const rest = omit(schema, keyword);
    if (others.length > 1) return { schema: { ...rest, [keyword]: others }, nullable: true };
    const only = schemas.resolve(others[0]);
    return { schema: { ...only, ...rest, ...(only.type ? { type: only.type } : {}) }, nullable: true };
  }
  return { schema, nullable: false };
}

function isNull(schema: Resolved): boolean {
  return schema.type === "null" || ("const" in schema && schema.const === null);
}

function omit(schema: Resolved, keyword: string): Resolved {
  const { [keyword]: _, ...rest } = schema;
  return rest;
}

/** Return the type label of a field. */
export function typeText(schema: Resolved, schemas: Schemas, depth = 0): string {
  const { schema: inner, nullable } = withoutNull(schema, schemas);
  const text = plainTypeText(inner, schemas, depth);
  return nullable && depth === 0 ? `${text} | null` : text;
}

function plainTypeText(schema: Resolved, schemas: Schemas, depth: number): string {
  if (depth > 3) return "…";
  if ("const" in schema) return JSON.stringify(schema.const);
  if (Array.isArray(schema.enum) && schema.enum.length <= 4) {
    const joined = schema.enum.map((item) => (typeof item === "string" ? item : JSON.stringify(item))).join(" | ");
    if (joined.length <= 40) return joined;
  }
  const union = (schema.oneOf ?? schema.anyOf) as Schema[] | undefined;
  if (Array.isArray(union) && union.length > 0) {
    const parts = union.slice(0, 4).map((branch) => typeText(schemas.resolve(branch), schemas, depth + 1));
    return [...new Set(parts)].join(" | ") + (union.length > 4 ? " | …" : "");
  }
  const types = typesOf(schema);
  if (types.length === 1 && types[0] === "array") {
    if (Array.isArray(schema.prefixItems)) {
      const items = schema.prefixItems.map((item) => typeText(schemas.resolve(item as Schema), schemas, depth + 1));
      return `[${items.join(", ")}]`;
    }
    const item = typeText(schemas.resolve(schema.items as Schema | undefined), schemas, depth + 1);
    return item.includes(" | ") ? `(${item})[]` : `${item}[]`;
  }
  if (types.length !== 1) return types.join(" | ") || "any";
  return (types[0] as string) + range(schema);
}

function range(schema: Resolved): string {
  const { minimum, maximum } = schema;
  if (minimum !== undefined && maximum !== undefined) return ` ${String(minimum)}–${String(maximum)}`;
  if (minimum !== undefined) return ` ≥ ${String(minimum)}`;
  if (maximum !== undefined) return ` ≤ ${String(maximum)}`;
  return typeof schema.format === "string" && schema.type === "string" ? ` ${schema.format}` : "";
}

/** Return the first example of a schema. */
export function exampleOf(schema: Resolved): Json | undefined {
  if (Array.isArray(schema.examples) && schema.examples.length > 0) return schema.examples[0] as Json;
  if ("example" in schema) return schema.example as Json;
  return undefined;
}
