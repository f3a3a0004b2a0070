import { expect, it } from "vitest";
import { EventParser } from "../src/api/sse";
import type { Operation } from "../src/api/types";
import { MOST_BYTES, MOST_EVENTS, Ring, readFilter } from "../src/state/ring";
import { StreamState } from "../src/state/streams";

const TEXT =
  ': hello\n\nid: 1\nevent: measurement\ndata: {"a":\ndata: 1}\n\r\ndata: two\r\n\r\nretry: 5\n\nid: 3\ndata\n\n';

it("reads events however they are cut", () => {
  const whole = new EventParser().push(TEXT);
  expect(whole).toEqual([
    { type: "measurement", id: "1", data: '{"a":\n1}' },
    { type: "message", id: "1", data: "two" },
    { type: "message", id: "3", data: "" },
  ]);
  const parser = new EventParser();
  expect([...TEXT].flatMap((letter) => parser.push(letter))).toEqual(whole);
});

const event = (text: string) => ({ at: 0, type: "message", id: "", text });

it("keeps the last events, newest first", () => {
  const ring = new Ring();
  for (let number = 1; number <= MOST_EVENTS * 2 + 10; number++) ring.push(event(String(number)));
  expect([ring.size, ring.received]).toEqual([MOST_EVENTS, MOST_EVENTS * 2 + 10]);
  expect(ring.at(0)?.text).toBe(String(MOST_EVENTS * 2 + 10));
  expect(ring.bySeq(ring.received - 5)?.seq).toBe(ring.received - 5);
  expect(ring.bySeq(3)).toBeUndefined();
  expect(ring.all()).toHaveLength(MOST_EVENTS);
});

it("keeps no more bytes than it may", () => {
  const ring = new Ring();
  for (let number = 0; number < 40; number++) ring.push(event("x".repeat(MOST_BYTES / 10)));
  expect(ring.size).toBe(10);
});

it("filters by words and by comparison", () => {
  const data = { celsius: 14.2, place: { city: "Oslo" }, tags: ["a"] };
  const text = JSON.stringify(data);
  const matches = (filter: string) => readFilter(filter)?.(data, text);
  expect(readFilter("  ")).toBeUndefined();
  expect(
    [
      "oslo",
      "celsius >= 14",
      "celsius < 14",
      'place.city == "Oslo"',
      "place.city = Oslo",
      "tags[0] != a",
      "missing > 1",
    ].map(matches),
  ).toEqual([true, true, false, true, true, false, false]);
});

it("marks the event after a gap, and counts it", () => {
  const stream = new StreamState({ id: "shop.watch", outputSchema: true } as unknown as Operation, {});
  const items = [1, 2, 6, 7].map((number) => ({ at: 0, type: "message", id: `a1-${number}`, data: "{}" }));
  stream.receive(items);
  expect([stream.gaps, stream.received]).toEqual([1, 4]);
  expect(stream.ring.all().map(({ missing }) => missing)).toEqual([undefined, undefined, 3, undefined]);
});
