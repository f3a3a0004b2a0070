/** The spans of a trace as rows: by start within their parent, many equal siblings are folded. */

import type { Span } from "../api/types";

export interface TimelineRow {
  span: Span;
  depth: number;
  /** Number of equal siblings in this row. */
  count: number;
  /** Whether the calls below this row, or the equal ones in it, are shown; undefined if there are none. */
  isOpen: boolean | undefined;
}

export type Show = "all" | "failed" | "slow";

const FOLD_ABOVE = 500;

/** Return the rows; `toggled` are the calls that the reader folded, and the rows of equal siblings that were unfolded. */
export function rowsOf(spans: Span[], toggled: ReadonlySet<string>, show: Show = "all"): TimelineRow[] {
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
    for (const group of spans.length > FOLD_ABOVE ? fold(all) : all.map((span) => [span])) open(group, depth);
  };
  const open = (group: Span[], depth: number): void => {
    const [first] = group as [Span];
    const isGroup = group.length > 1;
    if (isGroup && !toggled.has(first.requestId)) {
      rows.push({ span: spanning(group), depth, count: group.length, isOpen: false });
      return;
    }
    for (const span of group) {
      // The first row of an unfolded group folds the group again.
      const foldsGroup = isGroup && span === first;
      const isOpen = foldsGroup || (children.has(span.requestId) ? !toggled.has(span.requestId) : undefined);
      rows.push({ span, depth, count: 1, isOpen });
      if (isOpen) walk(span.requestId, depth + 1);
    }
  };
  walk("", 0);
  return rows;
}

/** Group siblings of one operation at one worker; each failed one is a group of its own. */
function fold(spans: Span[]): Span[][] {
  const groups: Span[][] = [];
  const found = new Map<string, Span[]>();
  for (const span of spans) {
    const key = `${span.operationId} ${span.worker} ${span.outcome}`;
    const known = found.get(key);
    if (known && span.outcome !== "failed") known.push(span);
    else {
      const group = [span];
      found.set(key, group);
      groups.push(group);
    }
  }
  return groups;
}

/** The first call of a group, without its input and with the duration of the whole group. */
function spanning(group: Span[]): Span {
  const { endedAt: _, label: _label, ...first } = group[0] as Span;
  const ends = group.map((span) => span.endedAt);
  return ends.includes(undefined) ? first : { ...first, endedAt: Math.max(...(ends as number[])) };
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
