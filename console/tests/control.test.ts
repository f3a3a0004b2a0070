import { expect, describe as group, it } from "vitest";
import { branchOf } from "../src/form/branch";
import { type Control, describe } from "../src/form/control";
import { type Resolved, Schemas, typeText } from "../src/form/schema";

const control = (schema: Resolved, place = {}): Control => {
  const schemas = new Schemas(schema);
  return describe(schemas.resolve(schema), schemas, place).control;
};

group("schema to control", () => {
  const many = Array.from({ length: 13 }, (_, index) => `v${index}`);
  const rules: [string, Resolved, object, Partial<Control>][] = [
    ["text", { type: "string" }, {}, { kind: "text", area: false, input: "text" }],
    ["long text", { type: "string", maxLength: 201 }, {}, { kind: "text", area: true }],
    ["text named body", { type: "string" }, { name: "body" }, { kind: "text", area: true }],
    ["short text named body", { type: "string", maxLength: 20 }, { name: "body" }, { kind: "text", area: false }],
    ["text with lines", { type: "string" }, { value: "a\nb" }, { kind: "text", area: true }],
    ["password", { type: "string", format: "password" }, {}, { kind: "text", input: "password" }],
    ["uuid", { type: "string", format: "uuid" }, {}, { kind: "text", generate: true }],
    ["date", { type: "string", format: "date" }, {}, { kind: "date" }],
    ["date and time", { type: "string", format: "date-time" }, {}, { kind: "date-time" }],
    ["integer", { type: "integer" }, {}, { kind: "number", integer: true }],
    ["required boolean", { type: "boolean" }, { required: true }, { kind: "boolean", three: false }],
    ["optional boolean", { type: "boolean" }, {}, { kind: "boolean", three: true }],
    ["optional boolean with a default", { type: "boolean", default: false }, {}, { kind: "boolean", three: false }],
    ["enum of 4", { enum: many.slice(0, 4) }, {}, { kind: "enum", style: "segmented" }],
    ["enum of 12", { enum: many.slice(0, 12) }, {}, { kind: "enum", style: "select" }],
    ["enum of 13", { enum: many }, {}, { kind: "enum", style: "combobox" }],
    ["const", { const: "a" }, {}, { kind: "const", value: "a" }],
    ["list of texts", { type: "array", items: { type: "string" } }, {}, { kind: "tokens" }],
    ["list of choices", { type: "array", items: { enum: ["a", "b"] } }, {}, { kind: "checks", options: ["a", "b"] }],
    ["list of objects", { type: "array", items: { type: "object" } }, {}, { kind: "list" }],
    ["tuple", { type: "array", prefixItems: [{ type: "string" }] }, {}, { kind: "tuple" }],
    ["bytes", { type: "string", format: "binary" }, {}, { kind: "bytes" }],
    ["base64", { type: "string", contentEncoding: "base64" }, {}, { kind: "bytes" }],
    ["anything", {}, {}, { kind: "raw" }],
    ["several types", { type: ["string", "integer"] }, {}, { kind: "union", keyword: "type" }],
    ["allOf that cannot be merged", { allOf: [{ type: "string" }, { type: "integer" }] }, {}, { kind: "raw" }],
    ["only null", { type: "null" }, {}, { kind: "const", value: null }],
  ];
  for (const [name, schema, place, expected] of rules) {
    it(name, () => expect(control(schema, place)).toMatchObject(expected));
  }

  it("puts required members first and deprecated ones last; leaves read-only ones out", () => {
    const made = control({
      type: "object",
      required: ["b"],
      properties: { old: { deprecated: true }, a: {}, b: {}, id: { readOnly: true } },
    });
    expect(made.kind === "object" && made.members.map((member) => member.name)).toEqual(["b", "a", "old"]);
  });

  it("merges allOf and follows references", () => {
    const schema = {
      allOf: [{ $ref: "#/$defs/A" }, { properties: { b: { type: "integer" } }, required: ["b"] }],
      $defs: { A: { type: "object", properties: { a: { type: "string" } } } },
    };
    const made = control(schema);
    expect(made.kind === "object" && made.members.map((member) => [member.name, member.required])).toEqual([
      ["b", true],
      ["a", false],
    ]);
  });

  it("does not follow a schema that contains itself for ever", () => {
    const schema = {
      $ref: "#/$defs/Node",
      $defs: { Node: { type: "object", properties: { next: { $ref: "#/$defs/Node" } } } },
    };
    const made = control(schema);
    expect(made.kind === "object" && made.members[0]?.schema.$name).toBe("Node");
  });

  it("names the forms of a union", () => {
    const made = control({
      oneOf: [{ title: "Cat", properties: { kind: { const: "cat" } } }, { $ref: "#/$defs/Dog" }, { type: "string" }],
      $defs: { Dog: { properties: { kind: { const: "dog" } } } },
    });
    expect(made.kind === "union" && made.branches.map((branch) => branch.label)).toEqual(["Cat", "Dog", "string"]);
  });

  it("finds the form that a value has", () => {
    const schema: Resolved = {
      oneOf: [{ type: "string" }, { properties: { kind: { const: "a" } } }, { properties: { kind: { const: "b" } } }],
    };
    const schemas = new Schemas(schema);
    const made = control(schema);
    if (made.kind !== "union") throw new Error("no union");
    expect([
      branchOf(made, "x", schemas),
      branchOf(made, { kind: "a" }, schemas),
      branchOf(made, { kind: "b" }, schemas),
    ]).toEqual([0, 1, 2]);
  });

  it("keeps null apart", () => {
    const schemas = new Schemas(true);
    for (const schema of [
      { type: ["string", "null"] },
      { anyOf: [{ type: "string" }, { type: "null" }] },
      { type: "string", nullable: true },
    ]) {
      const made = describe(schema, schemas);
      expect([made.control.kind, made.nullable]).toEqual(["text", true]);
    }
  });
});

it("writes types as a reader expects them", () => {
  const text = (schema: Resolved) => typeText(schema, new Schemas(schema));
  expect(text({ type: "integer", minimum: 1, maximum: 7 })).toBe("integer 1–7");
  expect(text({ type: "array", items: { oneOf: [{ type: "string" }, { type: "object" }] } })).toBe(
    "(string | object)[]",
  );
  expect(text({ enum: ["LEFT", "RIGHT"] })).toBe("LEFT | RIGHT");
  expect(text({ type: ["string", "null"] })).toBe("string | null");
});
