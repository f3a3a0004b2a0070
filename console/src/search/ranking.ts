/** Ranking of operations by words: id prefix, id word, title, tag, field, description. */

import type { CatalogueEntry } from "../api/types";

export interface Filters {
  source?: string | undefined;
  type?: string | undefined;
  tag?: string | undefined;
  scope?: string | undefined;
}

interface Indexed {
  entry: CatalogueEntry;
  id: string;
  idWords: string[];
  title: string;
  tags: string;
  fields: string;
  description: string;
}

export type SearchIndex = Indexed[];

export function wordsOf(text: string): string[] {
  return text
    .toLowerCase()
    .split(/[^\p{L}\p{N}]+/u)
    .filter(Boolean);
}

export function buildIndex(entries: CatalogueEntry[]): SearchIndex {
  return entries.map((entry) => ({
    entry,
    id: entry.id.toLowerCase(),
    idWords: wordsOf(entry.id.replaceAll(/([a-z])([A-Z])/g, "$1 $2")),
    title: (entry.title ?? "").toLowerCase(),
    tags: (entry.tags ?? []).join(" ").toLowerCase(),
    fields: (entry.fields ?? []).join(" ").toLowerCase(),
    description: `${entry.description ?? ""} ${entry.method ?? ""} ${entry.path ?? ""}`.toLowerCase(),
  }));
}

/** Return the score of one word; 0 without a match. */
function scoreWord(indexed: Indexed, word: string): number {
  if (indexed.idWords.includes(word) || indexed.idWords.includes(`${word}s`)) return 64;
  if (indexed.idWords.some((each) => each.startsWith(word))) return 48;
  if (indexed.id.includes(word)) return 32;
  if (startsWord(indexed.title, word)) return 24;
  if (indexed.title.includes(word)) return 16;
  if (indexed.tags.includes(word)) return 8;
  if (startsWord(indexed.fields, word)) return 4;
  return indexed.description.includes(word) ? 1 : 0;
}

function startsWord(text: string, word: string): boolean {
  const at = text.indexOf(word);
  return at === 0 || (at > 0 && /[^\p{L}\p{N}]/u.test(text[at - 1] ?? ""));
}

function score(indexed: Indexed, whole: string, words: string[]): number {
  let total = 0;
  for (const word of words) {
    const points = scoreWord(indexed, word);
    if (points === 0) return 0;
    total += points;
  }
  if (indexed.id === whole) total += 1_000;
  else if (indexed.id.startsWith(whole)) total += 100;
  // Of equal matches, prefer the shorter id.
  return total + (30 * words.length) / Math.max(1, indexed.idWords.length) - (indexed.entry.deprecated ? 20 : 0);
}

export function passes(entry: CatalogueEntry, filters: Filters): boolean {
  if (filters.source && entry.source !== filters.source) return false;
  if (filters.type && entry.type !== filters.type) return false;
  if (filters.scope && !(entry.scopes ?? []).includes(filters.scope)) return false;
  return !filters.tag || (entry.tags ?? []).includes(filters.tag);
}

/** Return the matching ids, best first. */
export function searchIndex(index: SearchIndex, query: string, filters: Filters): string[] {
  const whole = query.trim().toLowerCase();
  const words = whole.includes(".") || whole.includes("/") ? [...wordsOf(whole)] : wordsOf(whole);
  const found: { id: string; points: number }[] = [];
  for (const indexed of index) {
    if (!passes(indexed.entry, filters)) continue;
    const points = score(indexed, whole, words);
    if (points > 0) found.push({ id: indexed.entry.id, points });
  }
  found.sort(
    (left, right) => right.points - left.points || left.id.length - right.id.length || (left.id < right.id ? -1 : 1),
  );
  return found.map((each) => each.id);
}

/** Split a text into pieces, each with whether it matches a word of the query. */
export function highlight(text: string, words: string[]): { text: string; hit: boolean }[] {
  if (words.length === 0) return [{ text, hit: false }];
  const escaped = words
    .map((word) => word.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&"))
    .sort((a, b) => b.length - a.length);
  return text
    .split(new RegExp(`(${escaped.join("|")})`, "iu"))
    .map((piece, index) => ({ text: piece, hit: index % 2 === 1 }))
    .filter((piece) => piece.text);
}
