/** Selection of the union branch that matches a value. */

import { isObject, type Json, type JsonObject, kindOf } from "../json/value";
import type { Control } from "./control";
import { type Resolved, type Schemas, typeOfValue, typesOf } from "./schema";

export function branchOf(
  control: Extract<Control, { kind: "union" }>,
  value: Json | undefined,
  schemas: Schemas,
): number {
  if (value === undefined) return 0;
  let best = 0;
  let most = Number.NEGATIVE_INFINITY;
  for (const [index, branch] of control.branches.entries()) {
    const points = scoreOf(branch.schema, value, schemas, control.discriminator);
    if (points > most) [best, most] = [index, points];
  }
  return best;
}

function scoreOf(schema: Resolved, value: Json, schemas: Schemas, discriminator: string | undefined): number {
  if ("const" in schema) return schema.const === value ? 10_000 : -10_000;
  if (Array.isArray(schema.enum)) return schema.enum.includes(value) ? 5_000 : -5_000;
  const types = typesOf(schema);
  const type = kindOf(value) === "number" ? typeOfValue(Number(value)) : kindOf(value);
  const isType = types.length === 0 || types.includes(type) || (type === "integer" && types.includes("number"));
  if (!isType) return -10_000;
  if (!isObject(value)) return types.length > 0 ? 10 : 5;
  return 10 + scoreMembers(schema, value, schemas, discriminator);
}

/** Constants decide, then required and declared properties. */
function scoreMembers(
  schema: Resolved,
  value: JsonObject,
  schemas: Schemas,
  discriminator: string | undefined,
): number {
  const properties = (schema.properties ?? {}) as Record<string, Resolved>;
  let points = 0;
  for (const [name, property] of Object.entries(properties)) {
    if (!Object.hasOwn(value, name)) continue;
    points += 2;
    const named = schemas.resolve(property);
    const options = "const" in named ? [named.const] : named.enum;
    if (!Array.isArray(options) || options.length !== 1) continue;
    points += (options[0] === value[name] ? 1 : -1) * (name === discriminator ? 1_000 : 100);
  }
  for (const name of (schema.required as string[] | undefined) ?? []) points += Object.hasOwn(value, name) ? 3 : -3;
  return points;
}
