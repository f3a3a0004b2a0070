import { expect, it } from "vitest";
import type { Operation } from "../src/api/types";
import { curlCode, opsCode, pythonCode, pythonValue } from "../src/code";

const operation = {
  id: "shop.order",
  http: { path: "/shop/order", methods: ["POST"] },
  executes: true,
} as unknown as Operation;
const input = { city: "New York", count: 2, tags: ["a", "b"], nested: { x: null }, empty: "", on: true, it: "it's" };

it("writes a call for the command line", () => {
  expect(opsCode(operation, input)).toBe(
    `ops call shop.order 'city=New York' count=2 tags=a tags=b nested:='{"x":null}' empty:='""' on=true 'it=it'"'"'s'`,
  );
  expect(opsCode({ ...operation, executes: false }, {})).toBe("ops sub shop.order");
});

it("writes Python", () => {
  expect(pythonValue({ a: [true, null, "ü\u2028"] })).toBe('{"a": [True, None, "ü\\u2028"]}');
  expect(pythonCode(operation, { n: 1 })).toContain('workspace.registry.execute("shop.order", {"n": 1})');
});

it("writes curl without the token itself", () => {
  const code = curlCode(operation, { a: "it's" }, true);
  expect(code).toContain('-H "Authorization: Bearer $OPERATIONS_TOKEN"');
  expect(code).toContain(`--data-raw '{"a":"it'"'"'s"}'`);
  expect(curlCode(operation, { f: { $bytes: "aGk=" } }, false)).toContain("application/vnd.operations+json");
});
