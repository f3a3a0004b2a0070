import { describe, expect, it } from "vitest";
import type { Schema } from "../src/api/types";
import { missingProperty, show } from "../src/form/messages";
import { compile } from "../src/form/validate";
import { ExactNumber, type Json } from "../src/json/value";
import vectors from "./messages.json";

describe("validation messages match the server's", () => {
  for (const { schema, value, errors } of vectors as unknown as {
    schema: Schema;
    value: Json;
    errors: [string, string][];
  }[]) {
    it(errors.map((each) => each.join(": ")).join("; "), () => {
      expect(compile(schema)(value).map((each) => [each.pointer, each.detail])).toEqual(errors);
    });
  }
});

it("accepts valid values and ignores formats and unsupported patterns", () => {
  const schema = {
    type: "object",
    properties: { mail: { type: "string", format: "email" }, odd: { type: "string", pattern: "(?<=a" } },
  };
  expect(compile(schema)({ mail: "no mail", odd: "x" })).toEqual([]);
});

it("checks numbers that JavaScript cannot hold, and bytes as text", () => {
  const schema = { type: "object", properties: { n: { type: "integer" }, b: { type: "string" } } };
  expect(compile(schema)({ n: new ExactNumber("12345678901234567890"), b: { $bytes: "aGk=" } })).toEqual([]);
});

it("finds no problems with an unusable schema", () => {
  expect(compile({ $ref: "#/nowhere" })({})).toEqual([]);
});

it("finds the missing property in a message", () => {
  expect(missingProperty('missing required property "a \\"b\\""')).toBe('a "b"');
  expect(missingProperty('"x" is not a string')).toBeUndefined();
  expect(show(["a", { b: 1 }])).toBe('["a", {…}]');
});
