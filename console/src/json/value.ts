/** JSON values as the page holds them, and access to their parts by path. Values are never changed in place. */

/** A number whose digits a JavaScript number would lose: 12345678901234567890, 1.0, 1e400. */
export class ExactNumber {
  constructor(readonly text: string) {}

  valueOf(): number {
    return Number(this.text);
  }

  toJSON(): unknown {
    const raw = (JSON as { rawJSON?: (text: string) => unknown }).rawJSON;
    return raw ? raw(this.text) : Number(this.text);
  }
}

export type Json = null | boolean | number | string | ExactNumber | Json[] | JsonObject;
export interface JsonObject {
  [name: string]: Json;
}
export type Path = readonly (string | number)[];

export function isObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof ExactNumber);
}

export function isNumber(value: unknown): value is number | ExactNumber {
  return typeof value === "number" || value instanceof ExactNumber;
}

export type Kind = "null" | "boolean" | "number" | "string" | "array" | "object";

export function kindOf(value: Json): Kind {
  if (value === null) return "null";
  if (Array.isArray(value)) return "array";
  if (isNumber(value)) return "number";
  return typeof value as Kind;
}

/** Return the part of a value at a path, or undefined. */
export function getAt(value: Json | undefined, path: Path): Json | undefined {
  let part = value;
  for (const key of path) {
    if (Array.isArray(part)) part = part[Number(key)];
    else if (isObject(part) && Object.hasOwn(part, key)) part = part[String(key)];
    else return undefined;
  }
  return part;
}

/** Return a copy with a new part at a path; missing parent objects are created. */
export function setAt(value: Json | undefined, path: Path, part: Json): Json {
  const [key, ...rest] = path;
  if (key === undefined) return part;
  if (typeof key === "number") {
    const items = Array.isArray(value) ? [...value] : [];
    items[key] = setAt(items[key], rest, part);
    return items;
  }
  const members = isObject(value) ? value : {};
  return { ...members, [key]: setAt(Object.hasOwn(members, key) ? members[key] : undefined, rest, part) };
}

/** Return a copy without the part at a path. */
export function removeAt(value: Json | undefined, path: Path): Json | undefined {
  const [key, ...rest] = path;
  if (key === undefined) return undefined;
  if (rest.length > 0) {
    const inner = getAt(value, [key]);
    if (inner === undefined || value === undefined) return value;
    return setAt(value, [key], removeAt(inner, rest) as Json);
  }
  if (Array.isArray(value)) return value.filter((_, index) => index !== key);
  if (!isObject(value)) return value;
  return Object.fromEntries(Object.entries(value).filter(([name]) => name !== key));
}

/** A path as a JSON pointer. */
export function pointerOf(path: Path): string {
  return path.map((part) => `/${String(part).replaceAll("~", "~0").replaceAll("/", "~1")}`).join("");
}

/** The parts of a JSON pointer, as text. */
export function pointerParts(pointer: string): string[] {
  if (!pointer) return [];
  return pointer
    .replace(/^#/, "")
    .split("/")
    .slice(1)
    .map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));
}

/** The value that a pointer names. */
export function atPointer(value: Json, pointer: string): Json | undefined {
  return getAt(value, pointerParts(pointer));
}

/** Return a path as code: data.labels[0].name. */
export function pathText(path: Path, root = "data"): string {
  let text = root;
  for (const part of path) {
    if (typeof part === "number") text += `[${part}]`;
    else text += /^[A-Za-z_$][\w$]*$/.test(part) ? `.${part}` : `[${JSON.stringify(part)}]`;
  }
  return text;
}

export function equal(left: Json | undefined, right: Json | undefined): boolean {
  if (left === right) return true;
  if (left instanceof ExactNumber || right instanceof ExactNumber) {
    return isNumber(left) && isNumber(right) && numberText(left) === numberText(right);
  }
  if (Array.isArray(left)) {
    return (
      Array.isArray(right) && left.length === right.length && left.every((item, index) => equal(item, right[index]))
    );
  }
  if (!isObject(left) || !isObject(right)) return false;
  const names = Object.keys(left);
  return (
    names.length === Object.keys(right).length &&
    names.every((name) => Object.hasOwn(right, name) && equal(left[name], right[name]))
  );
}

export function numberText(value: number | ExactNumber): string {
  return typeof value === "number" ? String(value) : value.text;
}

/** Return plain data, for libraries without exact numbers and bytes. */
export function plain(value: Json): unknown {
  if (value instanceof ExactNumber) return Number(value.text);
  if (Array.isArray(value)) return value.map(plain);
  if (!isObject(value)) return value;
  if (isBytes(value)) return value.$bytes;
  const entries = Object.entries(value).map(([name, member]) => [name, plain(member)] as const);
  return Object.fromEntries(entries);
}

/** Bytes in their JSON form. */
export function isBytes(value: Json | undefined): value is { $bytes: string } {
  return isObject(value) && typeof value.$bytes === "string" && Object.keys(value).length === 1;
}

export function shortText(value: Json | undefined): string {
  if (value === undefined) return "nothing";
  if (isBytes(value)) return "bytes";
  if (Array.isArray(value)) return `array of ${value.length}`;
  if (isObject(value)) return `object of ${Object.keys(value).length}`;
  const text = JSON.stringify(value);
  return text.length > 60 ? `${text.slice(0, 60)}…` : text;
}
