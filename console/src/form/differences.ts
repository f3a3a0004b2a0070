/** Where data differs from what its operation declares. */

import type { Schema } from "../api/types";
import type { Json } from "../json/value";
import { getAt, isBytes, isObject, pointerParts } from "../json/value";
import { Schemas, typeText } from "./schema";
import { compile } from "./validate";

export interface Difference {
  pointer: string;
  detail: string;
  declared: string;
  got: string;
}

const MOST = 100;

export function differences(schema: Schema, data: Json): Difference[] {
  const schemas = new Schemas(schema);
  return compile(schema)(data)
    .slice(0, MOST)
    .map(({ pointer, detail }) => ({
      pointer,
      detail,
      declared: declaredAt(schemas, pointer),
      got: shortText(getAt(data, pointerParts(pointer))),
    }));
}

function declaredAt(schemas: Schemas, pointer: string): string {
  let schema = schemas.resolve(schemas.root);
  for (const part of pointerParts(pointer)) {
    const properties = schema.properties as Record<string, Schema> | undefined;
    if (properties && Object.hasOwn(properties, part)) schema = schemas.resolve(properties[part]);
    else if (schema.items !== undefined && /^\d+$/.test(part)) schema = schemas.resolve(schema.items as Schema);
    else return "–";
  }
  return typeText(schema, schemas);
}

export function shortText(value: Json | undefined): string {
  if (value === undefined) return "nothing";
  if (isBytes(value)) return "bytes";
  if (Array.isArray(value)) return `array of ${value.length}`;
  if (isObject(value)) return `object of ${Object.keys(value).length}`;
  const text = JSON.stringify(value);
  return text.length > 60 ? `${text.slice(0, 60)}…` : text;
}
