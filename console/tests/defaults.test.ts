import { expect, it } from "vitest";
import { exampleValue, initialValue, withoutSecrets } from "../src/form/defaults";
import { compile } from "../src/form/validate";

const order = {
  type: "object",
  required: ["address", "lines", "kind"],
  properties: {
    address: {
      type: "object",
      required: ["city"],
      properties: { city: { type: "string", examples: ["Oslo"] }, zip: { type: "string" } },
    },
    lines: {
      type: "array",
      minItems: 2,
      items: {
        type: "object",
        required: ["count"],
        properties: { count: { type: "integer", minimum: 3, multipleOf: 4 } },
      },
    },
    kind: { enum: ["a", "b"] },
    gift: { type: "boolean", default: true },
  },
};

it("begins with required defaults and constants only", () => {
  expect(initialValue(order)).toEqual({ address: {}, lines: [] });
  expect(
    initialValue({ type: "object", required: ["n"], properties: { n: { default: 3 }, m: { default: 4 } } }),
  ).toEqual({ n: 3 });
});

it("makes an example that the schema accepts", () => {
  const example = exampleValue(order);
  expect(example).toEqual({ address: { city: "Oslo" }, lines: [{ count: 4 }, { count: 4 }], kind: "a" });
  expect(compile(order)(example)).toEqual([]);
  expect(exampleValue(order, true)).toMatchObject({ gift: true });
});

it("keeps secrets out of the history", () => {
  const schema = {
    type: "object",
    properties: {
      user: {},
      password: { type: "string", format: "password" },
      inner: { properties: { key: { writeOnly: true } } },
      list: { items: { properties: { pin: { format: "password" } } } },
    },
  };
  const value = { user: "a", password: "p", inner: { key: "k", name: "n" }, list: [{ pin: "1", no: 2 }] };
  expect(withoutSecrets(schema, value)).toEqual({ user: "a", inner: { name: "n" }, list: [{ no: 2 }] });
});
