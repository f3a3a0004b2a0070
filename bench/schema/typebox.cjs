// Times TypeBox's Value.Cast on the cases read from stdin; prints microseconds (medians) as JSON.
"use strict";
const path = require("node:path");
const modules = path.join(__dirname, "..", "node_modules", "@sinclair", "typebox");
const { Type } = require(modules);
const { Value } = require(path.join(modules, "build", "cjs", "value", "index.js"));

// Build a JSON Schema with TypeBox's constructors.
function build(schema, root, self) {
  if (schema.$ref === "#") return self;
  if (schema.$ref) return build(root.$defs[schema.$ref.split("/").pop()], root, self);
  if (schema.anyOf) return Type.Union(schema.anyOf.map((branch) => build(branch, root, self)));
  if ("const" in schema) return Type.Literal(schema.const);
  if (schema.enum) return Type.Union(schema.enum.map((value) => Type.Literal(value)));
  if (Array.isArray(schema.type)) return Type.Union(schema.type.map((type) => build({ ...schema, type }, root, self)));
  switch (schema.type) {
    case "string": return Type.String();
    case "integer": return Type.Integer(schema.minimum === undefined ? {} : { minimum: schema.minimum });
    case "number": return Type.Number();
    case "boolean": return Type.Boolean();
    case "null": return Type.Null();
    case "array": return Type.Array(build(schema.items, root, self));
  }
  const members = {};
  for (const [name, item] of Object.entries(schema.properties)) {
    const made = build(item, root, self);
    members[name] = schema.required.includes(name) ? made : Type.Optional(made);
  }
  return Type.Object(members);
}

// CPU time, as in the Python part of the benchmark. The clock is coarse, so one sample takes at least ten milliseconds.
function cpu(run, times) {
  const start = process.cpuUsage();
  for (let index = 0; index < times; index++) run();
  const { user, system } = process.cpuUsage(start);
  return user + system;
}

function median(run) {
  let times = 1;
  while (cpu(run, times) < 10000) times *= 2;
  const samples = [];
  const until = process.hrtime.bigint() + 1500000000n;
  while (samples.length < 5 || (samples.length < 100 && process.hrtime.bigint() < until)) {
    samples.push(cpu(run, times) / times);
  }
  samples.sort((a, b) => a - b);
  return samples[Math.floor(samples.length / 2)];
}

let input = "";
process.stdin.on("data", (chunk) => (input += chunk));
process.stdin.on("end", () => {
  const rows = JSON.parse(input).map(({ schema, values }) => {
    const recursive = JSON.stringify(schema).includes('"$ref":"#"');
    const type = recursive ? Type.Recursive((self) => build(schema, schema, self)) : build(schema, schema, null);
    return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, median(() => Value.Cast(type, value))]));
  });
  process.stdout.write(JSON.stringify(rows));
});
