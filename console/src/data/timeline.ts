/** The spans of a trace as rows: by start within their parent, many equal siblings are folded. */

import type { Span } from "../api/types";

export interface TimelineRow {
  span: Span;
  depth: number;
  /** Number of equal siblings in this row. */
  count: number;
  hasChildren: boolean;
}

export type Show = "all" | "failed" | "slow";

const FOLD_ABOVE = 500;

export function rowsOf(spans: Span[], folded: ReadonlySet<string>, show: Show = "all"): TimelineRow[] {
  const ids = new Set(spans.map((span) => span.requestId));
  const children = new Map<string, Span[]>();
  for (const span of spans) {
    const parent = span.parentRequestId && ids.has(span.parentRequestId) ? span.parentRequestId : "";
    const list = children.get(parent);
    if (list) list.push(span);
    else children.set(parent, [span]);
  }
  for (const list of children.values()) list.sort((left, right) => left.queuedAt - right.queuedAt);
  const kept = keptIds(spans, show);
  const rows: TimelineRow[] = [];
  const walk = (parent: string, depth: number): void => {
    const all = (children.get(parent) ?? []).filter((span) => !kept || kept.has(span.requestId));
    for (const [span, count] of spans.length > FOLD_ABOVE ? fold(all) : all.map((each): [Span, number] => [each, 1])) {
      const hasChildren = children.has(span.requestId);
      rows.push({ span, depth, count, hasChildren });
      if (hasChildren && count === 1 && !folded.has(span.requestId)) walk(span.requestId, depth + 1);
    }
  };
  walk("", 0);
  return rows;
}

/** Fold successful siblings of one operation into one row. */
function fold(spans: Span[]): [Span, number][] {
  const rows: [Span, number][] = [];
  const found = new Map<string, [Span, number]>();
  for (const span of spans) {
    const key = `${span.operationId} ${span.worker}`;
    const known = found.get(key);
    if (known && span.outcome === "ok") {
      known[1]++;
      known[0] = { ...known[0], ...(span.endedAt ? { endedAt: Math.max(known[0].endedAt ?? 0, span.endedAt) } : {}) };
    } else {
      const row: [Span, number] = [span, 1];
      if (span.outcome === "ok") found.set(key, row);
      rows.push(row);
    }
  }
  return rows;
}

function keptIds(spans: Span[], show: Show): Set<string> | undefined {
  if (show === "all") return undefined;
  const byId = new Map(spans.map((span) => [span.requestId, span]));
  const durations = spans
    .map((span) => (span.endedAt ?? span.queuedAt) - span.queuedAt)
    .sort((left, right) => right - left);
  const slow = durations[Math.min(durations.length - 1, Math.max(2, Math.floor(durations.length / 10)))] ?? 0;
  const kept = new Set<string>();
  for (const span of spans) {
    const isKept =
      show === "failed" ? span.outcome === "failed" : (span.endedAt ?? span.queuedAt) - span.queuedAt >= slow;
    let next: Span | undefined = isKept ? span : undefined;
    while (next && !kept.has(next.requestId)) {
      kept.add(next.requestId);
      next = next.parentRequestId ? byId.get(next.parentRequestId) : undefined;
    }
  }
  return kept;
}

/** Return round ticks of a time axis: at most six, in milliseconds. */
export function marksOf(total: number): number[] {
  const rough = Math.max(total, 0.001) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((each) => each >= rough) ?? power * 10;
  const marks = [];
  for (let at = 0; at <= total * 1.0001; at += step) marks.push(at);
  return marks;
}
