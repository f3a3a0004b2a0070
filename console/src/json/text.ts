/** Lossless parsing and writing of JSON text. */

import { ExactNumber, type Json } from "./value";

/** Texts without such a number use the built-in parser, which is several times as fast. */
const INEXACT = /\d{16}|\.\d*0(?!\d)|\d[eE]|-0(?![.\d])/;

export class JsonError extends Error {
  constructor(
    message: string,
    readonly text: string,
    readonly line: number,
    readonly column: number,
  ) {
    super(message);
  }

  /** The message with its position. */
  get detail(): string {
    return `JSON has an error at ${this.line}:${this.column}: ${this.message}`;
  }
}

type Reviver = (key: string, value: unknown, context?: { source?: string }) => unknown;

const keepDigits: Reviver = (_key, value, context) => {
  if (typeof value !== "number" || context?.source === undefined) return value;
  return String(value) === context.source ? value : new ExactNumber(context.source);
};

/** Parse JSON text; raise JsonError with the position of the error. */
export function parseJson(text: string): Json {
  try {
    return INEXACT.test(text)
      ? (JSON.parse(text, keepDigits as (key: string, value: unknown) => unknown) as Json)
      : (JSON.parse(text) as Json);
  } catch (error) {
    throw locate(String((error as Error).message), text);
  }
}

export function writeJson(value: unknown, indent = 0): string {
  return JSON.stringify(value, null, indent) ?? "null";
}

/** Find the position of an error: browsers report it differently, or not at all. */
function locate(message: string, text: string): JsonError {
  const reason = message
    .replace(/^JSON\.parse: /, "")
    .replace(/ (in JSON )?at (position|line) .*$/s, "")
    .replace(/, .*is not valid JSON$/s, "");
  const before = text.slice(0, errorOffset(text)).split("\n");
  return new JsonError(reason, text, before.length, (before.at(-1)?.length ?? 0) + 1);
}

const SPACE = /[ \t\n\r]*/y;
const SCALAR =
  /"(?:[^"\\\p{Cc}]|\\(?:["\\/bfnrt]|u[\dA-Fa-f]{4}))*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null/uy;

/** Return the position of the first invalid character. */
export function errorOffset(text: string): number {
  let at = 0;
  const take = (pattern: RegExp): string => {
    pattern.lastIndex = at;
    const found = pattern.exec(text)?.[0] ?? "";
    at += found.length;
    return found;
  };
  const expects = (letter: string): boolean => {
    take(SPACE);
    if (text[at] !== letter) return false;
    at++;
    return true;
  };
  const value = (): boolean => {
    take(SPACE);
    if (text[at] === "{")
      return list("}", () => expects('"') && --at >= 0 && take(SCALAR) !== "" && expects(":") && value());
    if (text[at] === "[") return list("]", value);
    return take(SCALAR) !== "";
  };
  const list = (end: string, item: () => boolean): boolean => {
    at++;
    if (expects(end)) return true;
    do if (!item()) return false;
    while (expects(","));
    return expects(end);
  };
  if (value()) take(SPACE);
  return at;
}

/** Text as base64url, for links. */
export function toBase64Url(text: string): string {
  const bytes = new TextEncoder().encode(text);
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

export function fromBase64Url(text: string): string {
  return new TextDecoder().decode(fromBase64(text.replaceAll("-", "+").replaceAll("_", "/")));
}

export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index++) bytes[index] = binary.charCodeAt(index);
  return bytes;
}

export function toBase64(bytes: Uint8Array): string {
  let binary = "";
  for (let start = 0; start < bytes.length; start += 0x8000) {
    binary += String.fromCharCode(...bytes.subarray(start, start + 0x8000));
  }
  return btoa(binary);
}
