/** Chart of a numeric property of a stream's events over the last minute. */

import { useMemo } from "preact/hooks";
import type { StreamEvent } from "../state/ring";
import { dataOf, type StreamState } from "../state/streams";

const SECONDS = 60;
const MOST_POINTS = 400;

/** Return the names of numeric properties in the newest events. */
export function numericFields(stream: StreamState): string[] {
  const names = new Set<string>();
  for (let index = 0; index < Math.min(5, stream.ring.size); index++) {
    const event = stream.ring.at(index);
    const data = event && event.failure === undefined ? dataOf(event) : undefined;
    if (typeof data === "number") names.add("");
    else if (typeof data === "object" && data !== null && !Array.isArray(data)) {
      for (const [name, value] of Object.entries(data)) if (typeof value === "number") names.add(name);
    }
  }
  const isCounter = (name: string) => Number(countsUp(stream, name));
  return [...names].sort((left, right) => isCounter(left) - isCounter(right)).slice(0, 6);
}

/** Whether a number only counts the events; others are preferred. */
function countsUp(stream: StreamState, field: string): boolean {
  const [newer, older] = [stream.ring.at(0), stream.ring.at(1)].map((event) => {
    const data = event ? dataOf(event) : undefined;
    return field === "" ? data : (data as Record<string, unknown> | null | undefined)?.[field];
  });
  return typeof newer === "number" && typeof older === "number" && newer - older === 1;
}

function pointsOf(stream: StreamState, field: string): { at: number; value: number }[] {
  const since = Date.now() - SECONDS * 1_000;
  const events: StreamEvent[] = [];
  for (let index = 0; index < stream.ring.size; index++) {
    const event = stream.ring.at(index);
    if (!event || event.at < since) break;
    events.push(event);
  }
  const step = Math.max(1, Math.ceil(events.length / MOST_POINTS));
  const points = [];
  for (let index = events.length - 1; index >= 0; index -= step) {
    const event = events[index] as StreamEvent;
    if (event.failure !== undefined) continue;
    const data = dataOf(event);
    const value = field === "" ? data : (data as Record<string, unknown> | null)?.[field];
    if (typeof value === "number") points.push({ at: event.at, value });
  }
  return points;
}

export function NumberChart(props: { stream: StreamState; field: string; isLarge?: boolean }) {
  const { stream, field } = props;
  // Redraw four times a second.
  const moment = Math.floor(stream.version.value && performance.now() / 250);
  const points = useMemo(() => pointsOf(stream, field), [stream, field, stream.paused.value ? 0 : moment]);
  if (points.length < 2) return null;
  const values = points.map((point) => point.value);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const end = Math.max(...points.map((point) => point.at));
  const begin = Math.min(end - 1_000, points[0]?.at ?? end);
  const height = props.isLarge ? 160 : 72;
  const x = (at: number) => ((at - begin) / (end - begin || 1)) * 800;
  const y = (value: number) => height - 12 - ((value - low) / (high - low || 1)) * (height - 24);
  const path = points
    .map((point, index) => `${index ? "L" : "M"}${x(point.at).toFixed(1)} ${y(point.value).toFixed(1)}`)
    .join("");
  const text = `min ${short(low)} · mean ${short(mean)} · max ${short(high)}`;
  return (
    <div class="chartbox">
      <div class="row">
        <span class="key">
          <i />
          <code>{field || "value"}</code>
        </span>
        <span class="t3 n">{text}</span>
        <span class="t3 right">last {Math.max(1, Math.round((end - begin) / 1_000))} s</span>
      </div>
      <svg
        width="100%"
        height={height + 8}
        viewBox={`0 0 800 ${height}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${field || "value"}: ${text}`}
      >
        <path class="gl" d={`M0 12.5h800M0 ${height / 2 + 0.5}h800M0 ${height - 11.5}h800`} />
        <path class="s1" vector-effect="non-scaling-stroke" d={path} />
      </svg>
    </div>
  );
}

function short(value: number): string {
  return Math.abs(value) >= 1_000 ? Math.round(value).toLocaleString("en") : String(Math.round(value * 10) / 10);
}
