/** Fields on a page: the control and its message are joined, also for controls of several buttons. */

import { render } from "preact";
import { expect, it, vi } from "vitest";
import type { Operation } from "../src/api/types";
import { SchemaForm } from "../src/components/form/SchemaForm";
import { FormState } from "../src/state/form";

vi.setConfig({ testTimeout: 60_000 }); // for a busy machine
const soon = (check: () => void) => vi.waitFor(check, { timeout: 50_000 });

const OPERATION = {
  id: "shop.rate",
  inputSchema: {
    type: "object",
    required: ["level", "tags"],
    properties: {
      level: { enum: ["low", "mid", "high"], description: "how much" },
      tags: { type: "array", minItems: 1, items: { enum: ["a", "b"] } },
      words: { type: "object", patternProperties: { "(?i)^x-": { type: "string" } }, additionalProperties: false },
    },
  },
} as unknown as Operation;

async function shown(): Promise<FormState> {
  const form = new FormState(OPERATION);
  document.body.innerHTML = "<main></main>";
  render(<SchemaForm form={form} />, document.querySelector("main") as Element);
  await soon(() => expect(form.problems.value.length).toBe(2));
  return form;
}

const control = (pointer: string) => document.getElementById(`field:${pointer}`) as HTMLElement;
const described = (pointer: string) =>
  (control(pointer).getAttribute("aria-describedby") ?? "")
    .split(" ")
    .map((id) => document.getElementById(id)?.textContent);

it.each([
  ["/level", 'missing required property "level"'],
  ["/tags", "has fewer than 1 items"],
])("shows the message of %s when it is left", async (pointer, message) => {
  await shown();
  expect(document.querySelector(".msg")).toBeNull();
  control(pointer).dispatchEvent(new FocusEvent("focusout", { bubbles: true }));
  await soon(() => expect(described(pointer)).toContain(message));
});

it("joins a segmented control to its help and its problem", async () => {
  const form = await shown();
  expect(described("/level")).toEqual(["how much"]);
  form.validateNow();
  await soon(() => expect(control("/level").getAttribute("aria-invalid")).toBe("true"));
  expect(control("/level").getAttribute("role")).toBe("radiogroup");
  expect(described("/level")).toEqual(['missing required property "level"', "how much"]);
});

it("shows a field whose pattern JavaScript cannot compile", async () => {
  const form = await shown();
  form.set(["words"], {});
  await soon(() => expect(document.querySelector('[aria-label="New name in words"]')).not.toBeNull());
  const name = document.querySelector('[aria-label="New name in words"]') as HTMLInputElement;
  name.value = "X-a";
  name.dispatchEvent(new Event("input", { bubbles: true }));
  await soon(() => expect(name.closest(".row")?.querySelector("button")?.disabled).toBe(false));
});
