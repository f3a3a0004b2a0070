import { describe, expect, it } from "vitest";
import { fromBase64, fromBase64Url, JsonError, parseJson, toBase64, toBase64Url, writeJson } from "../src/json/text";
import { ExactNumber, equal, getAt, pathText, pointerOf, pointerParts, removeAt, setAt } from "../src/json/value";

const keepsDigits = "rawJSON" in JSON;

describe("numbers", () => {
  it.runIf(keepsDigits)("keep their digits", () => {
    const text = '{"big":12345678901234567890,"exact":1.0,"plain":3,"text":"1.0"}';
    expect(writeJson(parseJson(text))).toBe(text);
  });

  it("are equal by their text", () => {
    expect(equal(new ExactNumber("1.0"), new ExactNumber("1.0"))).toBe(true);
    expect(equal(new ExactNumber("1.0"), 1)).toBe(false);
  });
});

it("reports the position of JSON errors", () => {
  let error: unknown;
  try {
    parseJson('{\n  "a": 1,\n  "b": oops\n}');
  } catch (caught) {
    error = caught;
  }
  expect(error).toBeInstanceOf(JsonError);
  expect((error as JsonError).line).toBe(3);
});

it("reads and changes parts without changing the whole", () => {
  const value = { a: [{ b: 1 }], "x/y": 2 };
  expect(setAt(value, ["a", 0, "b"], 5)).toEqual({ a: [{ b: 5 }], "x/y": 2 });
  expect(setAt(undefined, ["a", "b"], 1)).toEqual({ a: { b: 1 } });
  expect(removeAt(value, ["a", 0])).toEqual({ a: [], "x/y": 2 });
  expect(getAt(value, ["a", 0, "b"])).toBe(1);
  expect(getAt(value, ["constructor"])).toBeUndefined();
  expect(value).toEqual({ a: [{ b: 1 }], "x/y": 2 });
  expect(Object.hasOwn(setAt({}, ["__proto__"], 1) as object, "__proto__")).toBe(true);
});

it("writes paths and pointers", () => {
  expect(pointerOf(["a/b", 0, "~"])).toBe("/a~1b/0/~0");
  expect(pointerParts("/a~1b/0/~0")).toEqual(["a/b", "0", "~"]);
  expect(pathText(["labels", 0, "a b"])).toBe('data.labels[0]["a b"]');
});

it("carries any text in a link, and any bytes in JSON", () => {
  const text = '{"ü":"💡"}';
  expect(fromBase64Url(toBase64Url(text))).toBe(text);
  expect(toBase64Url(text)).toMatch(/^[\w-]+$/);
  const bytes = new Uint8Array(100_000).map((_, index) => index % 251);
  expect(fromBase64(toBase64(bytes))).toEqual(bytes);
});
