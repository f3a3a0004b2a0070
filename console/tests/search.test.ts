import { expect, it } from "vitest";
import type { CatalogueEntry } from "../src/api/types";
import { buildIndex, highlight, searchIndex } from "../src/search/ranking";

const entry = (id: string, more: Partial<CatalogueEntry> = {}): CatalogueEntry => ({
  id,
  type: "query",
  source: id.split(".")[0] ?? "",
  ...more,
});

const index = buildIndex([
  entry("github.issues/create-comment", { type: "mutation", title: "Create an issue comment", tags: ["issues"] }),
  entry("github.issues/list", { title: "List issues", fields: ["comment_sort"] }),
  entry("github.repos/get", { description: "Returns a repository and its comment settings" }),
  entry("shop.comment", { deprecated: true }),
  entry("shop.quote", { tags: ["comment"], scopes: ["read"] }),
]);

it("ranks ids before titles, tags, fields and descriptions", () => {
  expect(searchIndex(index, "comment", {})).toEqual(
    ["shop.comment", "github.issues/create-comment", "shop.quote", "github.issues/list", "github.repos/get"].sort(
      (a, b) => order.indexOf(a) - order.indexOf(b),
    ),
  );
});

const order = ["github.issues/create-comment", "shop.comment", "shop.quote", "github.issues/list", "github.repos/get"];

it("wants every word, and takes the beginning of one", () => {
  expect(searchIndex(index, "iss comm", {})[0]).toBe("github.issues/create-comment");
  expect(searchIndex(index, "issue nothing", {})).toEqual([]);
  expect(searchIndex(index, "github.issues/l", {})[0]).toBe("github.issues/list");
});

it("filters by source, type, tag and scope", () => {
  expect(searchIndex(index, "comment", { scope: "read" })).toEqual(["shop.quote"]);
  expect(searchIndex(index, "comment", { scope: "write" })).toEqual([]);
  expect(searchIndex(index, "comment", { source: "shop", tag: "comment" })).toEqual(["shop.quote"]);
  expect(searchIndex(index, "comment", { type: "mutation" })).toEqual(["github.issues/create-comment"]);
});

it("is quick with thousands of operations", () => {
  const many = buildIndex(
    Array.from({ length: 5_000 }, (_, number) =>
      entry(`source.group${number % 50}/operation-${number}`, {
        title: `Operation ${number}`,
        description: "d".repeat(160),
      }),
    ),
  );
  expect(searchIndex(many, "operation 49", {})).toHaveLength(5_000 - searchMisses());
});

function searchMisses(): number {
  return Array.from({ length: 5_000 }, (_, number) => number).filter(
    (number) => !`group${number % 50} ${number}`.includes("49"),
  ).length;
}

it("marks matches and treats the query as plain text", () => {
  expect(highlight("a (b) c", ["(b)"]).map((piece) => [piece.text, piece.hit])).toEqual([
    ["a ", false],
    ["(b)", true],
    [" c", false],
  ]);
});
