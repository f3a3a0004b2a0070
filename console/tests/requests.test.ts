import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { Batches, type FollowPart, followStream, sendCall } from "../src/data/requests";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

const events = (count: number, data = "{}") => Array.from({ length: count }, () => ({ type: "message", id: "", data }));
const request = { address: "http://host/a", headers: [] as [string, string][], body: "{}" };
const { signal } = new AbortController();

it("passes events in batches, one at a time", async () => {
  const sizes: number[] = [];
  const taken: (() => void)[] = [];
  const batches = new Batches((items) => {
    sizes.push(items.length);
    return new Promise((resolve) => taken.push(resolve));
  });
  await batches.add([]);
  await batches.add(events(3));
  await batches.add(events(2));
  await vi.advanceTimersByTimeAsync(1_000);
  expect(sizes).toEqual([3]);
  taken[0]?.();
  await vi.advanceTimersByTimeAsync(0);
  expect(sizes).toEqual([3, 2]);
  taken[1]?.();
  await vi.advanceTimersByTimeAsync(100);
  await batches.end();
});

it("reads no further while the page does not take events", async () => {
  let take = () => {};
  const batches = new Batches(() => new Promise((resolve) => (take = resolve)));
  await batches.add(events(1));
  let isAdded = false;
  const adding = batches.add(events(5_000)).then(() => (isAdded = true));
  await vi.advanceTimersByTimeAsync(1_000);
  expect(isAdded).toBe(false);
  take();
  await vi.advanceTimersByTimeAsync(0);
  await adding;
});

it("follows a stream whose first chunk has no event", async () => {
  const chunks = [": hello\n\n", "data: 1\n\n", "event: operations.end\ndata: {}\n\n"];
  const body = new ReadableStream({
    pull(controller) {
      const chunk = chunks.shift();
      if (chunk === undefined) controller.close();
      else controller.enqueue(new TextEncoder().encode(chunk));
    },
  });
  vi.stubGlobal("fetch", async () => new Response(body, { headers: { "Operations-Request-Id": "r1" } }));
  const parts: FollowPart[] = [];
  const ended = followStream(request, signal, async (part) => void parts.push(part));
  await vi.advanceTimersByTimeAsync(1_000);
  expect(await ended).toEqual({ lost: "during" });
  expect(parts[0]).toEqual({ requestId: "r1" });
  expect(parts.flatMap(({ items = [] }) => items.map(({ data }) => data))).toEqual(["1", "{}"]);
});

it("gives small bodies as text and large ones as a summary", async () => {
  const kept: unknown[] = [];
  const answer = (text: string) => {
    vi.stubGlobal("fetch", async () => new Response(text));
    return sendCall(request, signal, (document) => kept.push(document));
  };
  expect(await answer("[1]")).toMatchObject({ status: 200, text: "[1]" });
  expect(kept).toHaveLength(0);
  const large = await answer(JSON.stringify(Array.from({ length: 100_000 }, (_, id) => ({ id }))));
  expect(large).toMatchObject({ summary: { rows: 100_000 } });
  expect("text" in large).toBe(false);
  expect(kept).toHaveLength(1);
});

it("says whether a request without a response may have run", async () => {
  vi.stubGlobal("fetch", () => Promise.reject(new TypeError("Failed to fetch")));
  expect(await sendCall(request, signal, () => {})).toEqual({ lost: "before" });
  const broken = new ReadableStream({ pull: (controller) => controller.error(new TypeError("network error")) });
  vi.stubGlobal("fetch", async () => new Response(broken));
  expect(await sendCall(request, signal, () => {})).toEqual({ lost: "during" });
});
