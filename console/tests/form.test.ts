/** The state of a form: what was typed and cannot be read is never replaced by an older value when it is sent. */

import { expect, test } from "vitest";
import type { Operation } from "../src/api/types";
import { parseJson } from "../src/json/text";
import { FormState } from "../src/state/form";

const OPERATION = {
  id: "shop.note",
  inputSchema: { type: "object", properties: { anything: {}, name: { type: "string" } } },
} as unknown as Operation;

function errorOf(text: string): never {
  try {
    parseJson(text);
  } catch (error) {
    return error as never;
  }
  throw new Error(`${text} is valid`);
}

test("a JSON field with an error is a problem, and keeps the input from being sent", () => {
  const form = new FormState(OPERATION);
  form.set(["anything"], 1);
  expect(form.validateNow()).toBe(true);
  form.setUnreadable("/anything", errorOf('{"a": 1'));
  expect(form.validateNow()).toBe(false);
  expect(form.isReadable.value).toBe(false);
  expect(form.all.value[0]).toMatchObject({ pointer: "/anything" });
  expect(form.all.value[0]?.detail).toMatch(/^JSON has an error at 1:8: /);
  form.setUnreadable("/anything");
  expect(form.validateNow()).toBe(true);
  form.setUnreadable("/anything", errorOf("["));
  form.reset();
  expect(form.validateNow()).toBe(true);
});

test("the editor's text with an error is kept, and keeps the input from being sent", () => {
  const form = new FormState(OPERATION);
  form.setText('{"name": "tea"}');
  form.setText('{"name": "te');
  expect(form.value.value).toEqual({ name: "tea" });
  expect(form.jsonError.value?.text).toBe('{"name": "te');
  expect(form.validateNow()).toBe(false);
  form.reset();
  expect(form.jsonError.value).toBeUndefined();
  expect(form.validateNow()).toBe(true);
});

test("another branch of a union keeps the shared properties, and the first one its other properties", () => {
  const form = new FormState(OPERATION);
  form.set(["pay"], { kind: "card", name: "Ada", number: "42" });
  form.choose(["pay"], 0, 1, { kind: "invoice" }, new Set(["name", "due"]));
  expect(form.get(["pay"])).toEqual({ kind: "invoice", name: "Ada" });
  form.set(["pay", "name"], "Eve");
  form.choose(["pay"], 1, 0, { kind: "card" }, new Set(["name", "number"]));
  expect(form.get(["pay"])).toEqual({ kind: "card", name: "Eve", number: "42" });
});
