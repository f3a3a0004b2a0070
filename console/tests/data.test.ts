import { expect, it } from "vitest";
import type { Span } from "../src/api/types";
import { diff } from "../src/data/diff";
import { LocalDocument, readText } from "../src/data/document";
import { columnsOf, csvOf, findText, orderOf, tablePath } from "../src/data/nodes";
import { marksOf, rowsOf } from "../src/data/timeline";

const rows = [
  { name: "b", size: 10 },
  { name: "a", size: 9, extra: true },
];

it("finds tables", () => {
  expect(columnsOf(rows)).toEqual(["name", "size", "extra"]);
  expect(columnsOf([{ a: 1 }, { b: 1 }])).toBeUndefined();
  expect(columnsOf([{ a: 1 }])).toBeUndefined();
  expect(tablePath({ total: 2, items: rows })).toEqual(["items"]);
});

it("sorts numbers numerically and escapes formulas in exports", () => {
  expect(orderOf(rows, [], { column: "size", descending: false })).toEqual([1, 0]);
  const risky = [
    { a: "=1+1", b: 'say "x", y' },
    { a: "-2", b: null },
  ];
  expect(csvOf(risky, [], ["a", "b"], undefined)).toBe('a,b\r\n\'=1+1,"say ""x"", y"\r\n\'-2,\r\n');
});

it("gives parts of a document, and finds words in it", async () => {
  const read = readText('{"data":{"list":[{"login":"ada"},{"login":"bob"}],"n":1},"meta":{"source":"local"}}', true);
  expect(read.summary).toMatchObject({ keys: 4, meta: { source: "local" }, table: ["list"] });
  expect((await read.children(["list"], 1, 5)).map((node) => node.hint)).toEqual(["bob"]);
  expect(await read.find("BOB")).toEqual([["list", 1, "login"]]);
  expect(await new LocalDocument([3, 1]).text([], 0)).toBe("[3,1]");
});

it("stops searching at a limit", () => {
  expect(
    findText(
      Array.from({ length: 1_000 }, () => "x"),
      "x",
    ),
  ).toHaveLength(200);
});

it("shows differences and folds equal branches", () => {
  const lines = diff({ same: { a: 1 }, n: 1, gone: true }, { same: { a: 1 }, n: 2, more: [] });
  expect(lines.map((line) => [line.path.join("."), line.kind])).toEqual([
    ["same", "same"],
    ["n", "changed"],
    ["gone", "removed"],
    ["more", "added"],
  ]);
});

const span = (requestId: string, queuedAt: number, more: Partial<Span> = {}): Span => ({
  requestId,
  traceId: "t",
  operationId: "a.b",
  queuedAt,
  startedAt: queuedAt,
  endedAt: queuedAt + 10,
  attempts: [],
  outcome: "ok",
  ...more,
});

it("orders a timeline by start within its parent", () => {
  const spans = [
    span("c", 30, { parentRequestId: "a" }),
    span("a", 0),
    span("b", 10, { parentRequestId: "a" }),
    span("d", 15, { parentRequestId: "b", outcome: "failed" }),
  ];
  expect(rowsOf(spans, new Set()).map((row) => [row.span.requestId, row.depth])).toEqual([
    ["a", 0],
    ["b", 1],
    ["d", 2],
    ["c", 1],
  ]);
  expect(rowsOf(spans, new Set(["b"])).map((row) => row.span.requestId)).toEqual(["a", "b", "c"]);
  expect(rowsOf(spans, new Set(), "failed").map((row) => row.span.requestId)).toEqual(["a", "b", "d"]);
});

it("folds equal siblings of long traces", () => {
  const spans = [
    span("root", 0, { operationId: "x.y" }),
    ...Array.from({ length: 600 }, (_, index) => span(`n${index}`, index, { parentRequestId: "root" })),
    span("bad", 700, { parentRequestId: "root", outcome: "failed" }),
  ];
  const rows = rowsOf(spans, new Set());
  expect(rows.map((row) => [row.count, row.isOpen])).toEqual([
    [1, true],
    [600, false],
    [1, undefined],
  ]);
  expect(rows[1]?.span.endedAt).toBe(609);
  const opened = rowsOf(spans, new Set(["n0"]));
  expect(opened).toHaveLength(602);
  expect(opened.slice(1, 3).map((row) => row.isOpen)).toEqual([true, undefined]);
});

it("marks an axis with round numbers", () => {
  expect(marksOf(1_740)).toEqual([0, 500, 1_000, 1_500]);
});
