/** The form of every operation of a file. tests/console/test_forms.py runs it and validates the inputs on the server. */

import { readFileSync, writeFileSync } from "node:fs";
import { expect, it } from "vitest";
import type { Schema } from "../src/api/types";
import { exampleValue, initialValue } from "../src/form/defaults";
import { compile } from "../src/form/validate";
import { writeJson } from "../src/json/text";

const given = process.env.CONSOLE_SCHEMAS;
const wanted = process.env.CONSOLE_INPUTS;

it.runIf(given && wanted)("fills the forms of many operations", { timeout: 120_000 }, () => {
  const operations = JSON.parse(readFileSync(given as string, "utf8")) as { id: string; schema: Schema }[];
  const lines = operations.map(({ id, schema }) => {
    const check = compile(schema);
    const example = exampleValue(schema);
    return writeJson({ id, input: example, problems: check(example), empty: check(initialValue(schema)) });
  });
  writeFileSync(wanted as string, lines.join("\n"));
  expect(lines).toHaveLength(operations.length);
});
