/** A call as code to copy: `ops`, Python, curl; always without the token. */

import { callAddress } from "./addresses";
import { INPUT_TYPE } from "./api/calls";
import type { Operation } from "./api/types";
import { writeJson } from "./json/text";
import { ExactNumber, isBytes, isNumber, isObject, type Json } from "./json/value";

export type Language = "ops" | "python" | "curl";

/** Quote a string as one shell word. */
export function shellWord(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

export function opsCode(operation: Operation, input: Json): string {
  const words = ["ops", operation.executes === false ? "sub" : "call", operation.id];
  if (isObject(input) && !isBytes(input))
    for (const [name, value] of Object.entries(input)) words.push(...opsWords(name, value));
  else words.push(shellWord(writeJson(input)));
  return words.join(" ");
}

function opsWords(name: string, value: Json): string[] {
  const plain = plainWord(value);
  if (plain !== undefined) return [shellWord(`${name}=${plain}`)];
  if (Array.isArray(value) && value.length > 0) {
    const items = value.map(plainWord);
    if (items.every((item) => item !== undefined)) return items.map((item) => shellWord(`${name}=${item}`));
  }
  return [`${shellWord(`${name}:`)}=${shellWord(writeJson(value))}`];
}

function plainWord(value: Json): string | undefined {
  if (typeof value === "string") return value || undefined;
  return typeof value === "boolean" || isNumber(value) ? writeJson(value) : undefined;
}

export function pythonCode(operation: Operation, input: Json): string {
  const given = `${JSON.stringify(operation.id)}, ${pythonValue(input, 8)}`;
  const use =
    operation.executes === false
      ? `        async for event in workspace.registry.subscribe(${given}):\n            print(event.data)`
      : `        envelope = await workspace.registry.execute(${given})\n        print(envelope.data)`;
  return `import asyncio

from operations.config import load_config, open_workspace


async def main() -> None:
    async with open_workspace(load_config()) as workspace:
${use}


asyncio.run(main())
`;
}

/** Return a value as a Python literal. */
export function pythonValue(value: Json, indent = 0): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (value instanceof ExactNumber) return value.text;
  if (typeof value === "number") return String(value);
  if (typeof value === "string") return pythonText(value);
  if (isBytes(value)) return `__import__("base64").b64decode(${pythonText(value.$bytes)})`;
  const open = Array.isArray(value) ? "[" : "{";
  const close = Array.isArray(value) ? "]" : "}";
  const parts = Array.isArray(value)
    ? value.map((item) => pythonValue(item, indent + 4))
    : Object.entries(value).map(([name, member]) => `${pythonText(name)}: ${pythonValue(member, indent + 4)}`);
  const line = `${open}${parts.join(", ")}${close}`;
  if (line.length <= 80 && !line.includes("\n")) return line;
  const pad = " ".repeat(indent + 4);
  return `${open}\n${parts.map((part) => `${pad}${part},\n`).join("")}${" ".repeat(indent)}${close}`;
}

/** Return a Python string literal: JSON escapes are valid in Python, except surrogate pairs. */
function pythonText(text: string): string {
  return JSON.stringify(text).replaceAll(
    /[\u007f-\u009f\u2028\u2029]/g,
    (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

export function curlCode(operation: Operation, input: Json, hasToken: boolean): string {
  const address = location.origin + callAddress(operation.http?.path ?? "");
  const text = writeJson(input);
  const lines = [`curl -X POST ${shellWord(address)}`];
  if (hasToken) lines.push('-H "Authorization: Bearer $OPERATIONS_TOKEN"');
  lines.push(`-H 'Content-Type: ${text.includes('"$bytes"') ? INPUT_TYPE : "application/json"}'`);
  if (operation.executes === false) lines.push("-N -H 'Accept: text/event-stream'");
  lines.push(`--data-raw ${shellWord(text)}`);
  return lines.join(" \\\n  ");
}

export function codeFor(language: Language, operation: Operation, input: Json, hasToken: boolean): string {
  if (language === "ops") return opsCode(operation, input);
  return language === "python" ? pythonCode(operation, input) : curlCode(operation, input, hasToken);
}
