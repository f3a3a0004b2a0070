import { afterEach, expect, it, vi } from "vitest";
import { api } from "../src/api/client";

afterEach(() => vi.unstubAllGlobals());

const answer = (text: string) => vi.stubGlobal("fetch", async () => new Response(text));

it("reads the API's own numbers as plain ones, however they are written", async () => {
  answer('{"workers": [{"name": "a", "rate": 0.0, "p95": 10.50, "since": 1794848163218.0}]}');
  const [worker] = (await api.workers()).workers;
  expect([worker?.rate.toFixed(1), worker?.p95, worker?.since]).toEqual(["0.0", 10.5, 1794848163218]);
});

it("reads the values of a call apart from its times", async () => {
  answer('{"requestId": "x", "queuedAt": 12.0, "attempts": [], "input": {"id": 12345678901234567890}}');
  const span = await api.call("x");
  expect(span.queuedAt).toBe(12);
  expect(Number((span.input as { id: unknown }).id)).toBeGreaterThan(1e19);
  expect("output" in span).toBe(false);
});
