/** Where the data of an answer differs from its declaration; large data is compared where it is. */

import type { Schema } from "../api/types";
import type { Difference } from "../form/differences";
import type { DataDocument } from "./document";
import { ask, RemoteDocument } from "./thread";

export async function differencesOf(schema: Schema, data: DataDocument): Promise<Difference[]> {
  if (schema === true || (typeof schema === "object" && Object.keys(schema).length === 0)) return [];
  if (data instanceof RemoteDocument) return ask<Difference[]>({ kind: "differences", document: data.id, schema });
  if (data.value === undefined) return [];
  const { differences } = await import("../form/differences");
  return differences(schema, data.value);
}
