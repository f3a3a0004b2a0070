/** Difference of two values as one tree; equal branches are folded into one line. */

import { equal, isObject, type Json, type Path } from "../json/value";

export interface DiffLine {
  path: Path;
  kind: "same" | "changed" | "added" | "removed";
  left: Json | undefined;
  right: Json | undefined;
}

const MOST = 2_000;

export function diff(
  left: Json | undefined,
  right: Json | undefined,
  path: Path = [],
  lines: DiffLine[] = [],
): DiffLine[] {
  if (lines.length >= MOST) return lines;
  if (equal(left, right)) lines.push({ path, kind: "same", left, right });
  else if (left === undefined) lines.push({ path, kind: "added", left, right });
  else if (right === undefined) lines.push({ path, kind: "removed", left, right });
  else if (Array.isArray(left) && Array.isArray(right)) {
    for (let index = 0; index < Math.max(left.length, right.length); index++)
      diff(left[index], right[index], [...path, index], lines);
  } else if (isObject(left) && isObject(right)) {
    for (const name of new Set([...Object.keys(left), ...Object.keys(right)]))
      diff(left[name], right[name], [...path, name], lines);
  } else lines.push({ path, kind: "changed", left, right });
  return lines;
}
