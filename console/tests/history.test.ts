/** The history in the browser's database: bounded with its inputs, and the same after a reload. */

import "fake-indexeddb/auto";
import { IDBFactory } from "fake-indexeddb";
import { beforeEach, expect, it, vi } from "vitest";
import { clearHistory, history, loadHistory, type PastCall, remember, withinLimits } from "../src/state/history";

vi.setConfig({ testTimeout: 60_000 }); // for a busy machine

function call(id: string, more: Partial<PastCall> = {}): PastCall {
  return {
    id,
    owner: "host ada",
    operationId: "shop.quote",
    at: Number(id),
    durationMs: 12.4,
    traceId: "t",
    input: { item: "tea" },
    outcome: "ok",
    status: 200,
    label: "ok",
    bytes: 2,
    ...more,
  };
}

beforeEach(clearHistory);

/** What is in the database, as a page that was loaded again reads it. */
async function reloaded(owner = "host ada"): Promise<PastCall[]> {
  history.value = [];
  await loadHistory(owner);
  return history.value;
}

it("keeps the last 200 calls", () => {
  const calls = Array.from({ length: 250 }, (_, number) => call(String(number)));
  const { kept, dropped } = withinLimits(calls);
  expect([kept.length, dropped[0]?.id]).toEqual([200, "200"]);
});

it("counts inputs and responses against the limit of 20 MB", async () => {
  const large = "x".repeat(6 << 20);
  for (const id of ["1", "2"]) await remember(call(id, { body: large }));
  for (const id of ["3", "4"]) await remember(call(id, { input: { file: { $bytes: large } } }));
  expect(history.value.map(({ id }) => id)).toEqual(["4", "3", "2"]);
  expect((await reloaded()).map(({ id }) => id)).toEqual(["4", "3", "2"]);
});

it("reads calls of the identity as they were stored", async () => {
  const problem = {
    status: 422,
    code: "VALIDATION_ERROR",
    detail: "invalid",
    errors: [{ pointer: "/a", detail: "b" }],
  };
  await remember(call("1", { input: { n: 1.5, list: [null, "a"] }, problem, outcome: "failed" }));
  await remember(call("2", { owner: "host guest" }));
  const [read] = await reloaded();
  expect(read).toMatchObject(call("1", { input: { n: 1.5, list: [null, "a"] }, problem, outcome: "failed" }));
  expect(history.value).toHaveLength(1);
});

it("removes what several tabs stored beyond the limit", async () => {
  for (let number = 1; number <= 120; number++) await remember(call(String(number)));
  history.value = []; // another tab
  for (let number = 121; number <= 240; number++) await remember(call(String(number)));
  expect((await reloaded()).map(({ id }) => id).slice(0, 2)).toEqual(["240", "239"]);
  expect(await reloaded()).toHaveLength(200);
});

it("works without the database while a page of an older version has it open", async () => {
  vi.resetModules(); // a page that was just opened
  vi.stubGlobal("indexedDB", new IDBFactory());
  const older = await new Promise<IDBDatabase>((resolve) => {
    const request = indexedDB.open("operations.console", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("calls", { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
  });
  const page = await import("../src/state/history");
  await page.remember(call("1"));
  expect(page.history.value.map(({ id }) => id)).toEqual(["1"]);
  await page.endHistory(); // signing out does not wait for the other page
  expect(page.history.value).toEqual([]);
  older.close();
});
