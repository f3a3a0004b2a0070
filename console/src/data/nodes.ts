/** Slices of a value, so that a view holds only its visible lines. Used on the page and, for large values, in a worker. */

import {
  ExactNumber,
  getAt,
  isBytes,
  isNumber,
  isObject,
  type Json,
  type Kind,
  kindOf,
  numberText,
  type Path,
} from "../json/value";

export const LONGEST_TEXT = 2_048;

/** One line of a tree. */
export interface Node {
  key: string | number;
  kind: Kind | "bytes";
  /** Number of properties, items, characters or bytes. */
  size: number;
  /** A scalar as text, truncated if long. */
  text?: string;
  /** For an object, the property that names it. */
  hint?: string;
}

export interface Sort {
  column: string;
  descending: boolean;
}

const NAMES = ["name", "title", "login", "label", "id", "key", "path", "type"];

export function nodeOf(key: string | number, value: Json): Node {
  const kind = kindOf(value);
  if (isBytes(value)) return { key, kind: "bytes", size: Math.floor((value.$bytes.length * 3) / 4) };
  if (Array.isArray(value)) return { key, kind, size: value.length };
  if (isObject(value)) {
    const hint = hintOf(value);
    return { key, kind, size: Object.keys(value).length, ...(hint ? { hint } : {}) };
  }
  if (typeof value === "string") return { key, kind, size: value.length, text: value.slice(0, LONGEST_TEXT) };
  return { key, kind, size: 0, text: isNumber(value) ? numberText(value) : String(value) };
}

function hintOf(value: { [name: string]: Json }): string | undefined {
  for (const name of NAMES) {
    const member = Object.hasOwn(value, name) ? value[name] : undefined;
    if (typeof member === "string" && member && member.length <= 60) return member;
  }
  return undefined;
}

export function childrenOf(root: Json, path: Path, from: number, count: number): Node[] {
  const value = getAt(root, path);
  if (Array.isArray(value)) return value.slice(from, from + count).map((item, index) => nodeOf(from + index, item));
  if (!isObject(value) || isBytes(value)) return [];
  return Object.entries(value)
    .slice(from, from + count)
    .map(([name, member]) => nodeOf(name, member));
}

/** Count the keys of a value, at any depth. */
export function countKeys(value: Json): number {
  let count = 0;
  const pending: Json[] = [value];
  while (pending.length > 0) {
    const next = pending.pop() as Json;
    if (next instanceof ExactNumber || next === null || typeof next !== "object") continue;
    if (!Array.isArray(next)) count += Object.keys(next).length;
    for (const member of Array.isArray(next) ? next : Object.values(next)) pending.push(member);
  }
  return count;
}

/** The columns of a list of objects that share half of their keys; undefined if it is not a table. */
export function columnsOf(value: Json | undefined): string[] | undefined {
  if (!Array.isArray(value) || value.length < 2) return undefined;
  const sample = value.slice(0, 100);
  const counts = new Map<string, number>();
  for (const item of sample) {
    if (!isObject(item) || isBytes(item)) return undefined;
    for (const name of Object.keys(item)) counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  const shared = [...counts.values()].filter((count) => count === sample.length).length;
  return counts.size > 0 && shared * 2 >= counts.size ? [...counts.keys()] : undefined;
}

/** The path of the first table in a value: itself, or one of its properties. */
export function tablePath(value: Json): Path | undefined {
  if (columnsOf(value)) return [];
  if (!isObject(value)) return undefined;
  for (const [name, member] of Object.entries(value)) if (columnsOf(member)) return [name];
  return undefined;
}

export type Row = { index: number; cells: (Node | undefined)[] };

export function rowsOf(
  root: Json,
  path: Path,
  columns: string[],
  order: number[] | undefined,
  from: number,
  count: number,
): Row[] {
  const list = getAt(root, path);
  if (!Array.isArray(list)) return [];
  const rows: Row[] = [];
  for (let place = from; place < Math.min(from + count, list.length); place++) {
    const index = order?.[place] ?? place;
    const item = list[index];
    const cells = columns.map((name) =>
      isObject(item) && Object.hasOwn(item, name) ? nodeOf(name, item[name] as Json) : undefined,
    );
    rows.push({ index, cells });
  }
  return rows;
}

/** The indexes of a list in the order of a column. */
export function orderOf(root: Json, path: Path, sort: Sort): number[] {
  const list = getAt(root, path);
  if (!Array.isArray(list)) return [];
  const keys = list.map((item) => (isObject(item) ? item[sort.column] : undefined));
  const indexes = list.map((_, index) => index);
  const sign = sort.descending ? -1 : 1;
  return indexes.sort((left, right) => sign * compare(keys[left], keys[right]) || left - right);
}

function compare(left: Json | undefined, right: Json | undefined): number {
  if (left === undefined || right === undefined) return Number(left === undefined) - Number(right === undefined);
  if (isNumber(left) && isNumber(right)) return Number(left) - Number(right);
  return textOf(left).localeCompare(textOf(right));
}

function textOf(value: Json): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

export function csvOf(root: Json, path: Path, columns: string[], order: number[] | undefined): string {
  const list = getAt(root, path);
  if (!Array.isArray(list)) return "";
  const lines = [columns.map(csvCell).join(",")];
  for (let place = 0; place < list.length; place++) {
    const item = list[order?.[place] ?? place];
    lines.push(columns.map((name) => csvCell(isObject(item) ? item[name] : undefined)).join(","));
  }
  return `${lines.join("\r\n")}\r\n`;
}

/** A spreadsheet would run a cell that begins like a formula; an apostrophe stops that. */
function csvCell(value: Json | undefined): string {
  if (value === undefined || value === null) return "";
  const text = textOf(value);
  const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** Return the paths of the first lines whose key or text contains the words, in order. */
export function findText(root: Json, words: string, most = 200): Path[] {
  const wanted = words.toLowerCase();
  const found: Path[] = [];
  const walk = (value: Json, path: Path): void => {
    if (found.length >= most || value === null || typeof value !== "object" || value instanceof ExactNumber) return;
    const members: [string | number, Json][] = Array.isArray(value)
      ? value.map((item, index) => [index, item])
      : Object.entries(value);
    for (const [key, member] of members) {
      if (found.length >= most) return;
      const isScalar = member === null || typeof member !== "object" || member instanceof ExactNumber;
      const shown = isScalar ? String(isNumber(member) ? numberText(member) : member) : "";
      if (String(key).toLowerCase().includes(wanted) || shown.toLowerCase().includes(wanted))
        found.push([...path, key]);
      walk(member, [...path, key]);
    }
  };
  walk(root, []);
  return found;
}
