/**
 * The timeline of a trace. Hatched bars are queued calls, solid ones running, red ones failed; dashed lines are waits for
 * a retry. The colour identifies the worker.
 */

import { useEffect, useRef, useState } from "preact/hooks";
import type { Span } from "../api/types";
import { marksOf, type TimelineRow } from "../data/timeline";
import { duration } from "../format";

const ROW = 34;
const TOP = 34;
const LEFT = 462;
const NARROW = 260;
/** Width of a bar's label in pixels. */
const TEXT_ROOM = 170;

interface WaterfallProps {
  rows: TimelineRow[];
  begin: number;
  /** The current time, for a running trace. */
  now: number | undefined;
  end: number;
  colourOf: (worker: string | undefined) => number;
  chosen: string | undefined;
  /** Choose a call; undefined closes its details. */
  choose: (span: Span | undefined) => void;
  toggle: (span: Span) => void;
}

export function Waterfall(props: WaterfallProps) {
  const { rows, begin, now, chosen } = props;
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ width: 1_000, top: 0, height: 600 });
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const measure = () => setView({ width: element.clientWidth, top: element.scrollTop, height: element.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    return () => observer.disconnect();
  }, []);
  const chosenAt = rows.findIndex((row) => row.span.requestId === chosen);
  // Keep the chosen row visible: the details make the timeline smaller, and arrow keys choose rows outside the view.
  useEffect(() => {
    const element = box.current;
    if (!element || chosenAt < 0) return;
    const top = TOP + chosenAt * ROW;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + 2 * ROW > element.scrollTop + element.clientHeight)
      element.scrollTop = top + 2 * ROW - element.clientHeight;
  }, [chosenAt, view.height]);
  const isNarrow = view.width < 800;
  const left = isNarrow ? NARROW : LEFT;
  const total = Math.max(props.end - begin, 0.01);
  const span = marksOf(total).at(-1) ?? total;
  const shownTotal = Math.max(total, span) * 1.04;
  const x = (at: number) => left + ((at - begin) / shownTotal) * (view.width - left - 34);
  const height = TOP + rows.length * ROW + 16;
  const from = Math.max(0, Math.floor((view.top - TOP) / ROW) - 5);
  const to = Math.min(rows.length, Math.ceil((view.top + view.height) / ROW) + 5);
  const keys = (event: KeyboardEvent) => {
    const next = { ArrowDown: rows[chosenAt + 1], ArrowUp: rows[chosenAt - 1] }[event.key];
    const row = rows[chosenAt];
    if (next) props.choose(next.span);
    else if (event.key === "Escape" && chosen) props.choose(undefined);
    else if (row && row.isOpen !== undefined && event.key === (row.isOpen ? "ArrowLeft" : "ArrowRight"))
      props.toggle(row.span);
    else return;
    event.preventDefault();
  };
  return (
    <div
      class="wf"
      ref={box}
      tabIndex={0}
      role="group"
      aria-label={`Timeline of ${rows.length} calls: select one with the arrow keys`}
      onKeyDown={keys}
    >
      <svg width={view.width} height={height} aria-hidden="true">
        <defs>
          <pattern id="queued" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
            <rect width="2" height="6" class="fc" />
          </pattern>
        </defs>
        <text x={24} y={22}>
          Call
        </text>
        {!isNarrow && (
          <>
            <text x={252} y={22}>
              Worker
            </text>
            <text x={438} y={22} text-anchor="end">
              Duration
            </text>
          </>
        )}
        {marksOf(total).map((mark, index) => (
          <g key={mark}>
            <path class="gl" d={`M${Math.round(x(begin + mark)) + 0.5} ${TOP}V${height - 8}`} />
            <text x={x(begin + mark)} y={22} text-anchor={index === 0 ? "start" : "middle"}>
              {markText(mark)}
            </text>
          </g>
        ))}
        <path class="gl" d={`M0 ${TOP + 0.5}H${view.width}`} />
        {rows.slice(from, to).map((row, index) => (
          <Row
            key={row.span.requestId}
            row={row}
            y={TOP + 10 + (from + index) * ROW}
            x={x}
            width={view.width}
            isNarrow={isNarrow}
            {...props}
            end={now ?? props.end}
          />
        ))}
        {now !== undefined && <Now x={x(now)} height={height} text={duration(now - begin)} />}
      </svg>
    </div>
  );
}

function markText(milliseconds: number): string {
  if (milliseconds === 0) return "0 ms";
  return milliseconds < 1_000
    ? `${Number(milliseconds.toPrecision(3))} ms`
    : `${Number((milliseconds / 1_000).toPrecision(3))} s`;
}

function Now(props: { x: number; height: number; text: string }) {
  return (
    <g>
      <path class="nowl" d={`M${props.x} ${TOP}V${props.height - 8}`} />
      <rect class="f1" x={props.x - 26} y={8} width={52} height={20} rx={4} />
      <text class="tnow" x={props.x} y={22} text-anchor="middle">
        {props.text}
      </text>
    </g>
  );
}

function Row(
  props: WaterfallProps & { row: TimelineRow; y: number; x: (at: number) => number; width: number; isNarrow: boolean },
) {
  const { row, y, x, end } = props;
  const { span } = row;
  const failed = span.outcome === "failed";
  const hue = `f${props.colourOf(span.worker)}`;
  const started = span.startedAt ?? end;
  const ended = span.endedAt ?? end;
  const error = failed ? [span.status, span.code].filter(Boolean).join(" ") : "";
  const isChosen = span.requestId === props.chosen;
  return (
    <g class="wfrow" onClick={() => props.choose(span)} onDblClick={() => props.toggle(span)}>
      <rect class={isChosen ? "selr" : "hovr"} x={0} y={y - 10} width={props.width} height={ROW} />
      {Array.from({ length: row.depth }, (_, level) => (
        <path key={level} class="gl" d={`M${30.5 + level * 16} ${y - 10}v${ROW}`} />
      ))}
      <Name row={row} y={y} isNarrow={props.isNarrow} />
      {!props.isNarrow && (
        <>
          {span.worker && <rect class={hue} x={252} y={y + 3} width={8} height={8} rx={2} />}
          <text class="wk" x={266} y={y + 11}>
            {(span.worker ?? "").slice(0, 18)}
          </text>
          <text class={`wk ${failed ? "terr" : ""}`} x={438} y={y + 11} text-anchor="end">
            {duration(ended - span.queuedAt)}
          </text>
        </>
      )}
      {started - span.queuedAt > 0 && (
        <rect
          x={x(span.queuedAt)}
          y={y}
          width={Math.max(1, x(started) - x(span.queuedAt))}
          height={14}
          fill="url(#queued)"
        />
      )}
      {span.attempts.length > 1 ? (
        <Attempts {...props} hue={hue} ended={ended} />
      ) : (
        started < end + 0.001 && (
          <rect
            class={failed ? "fe" : hue}
            x={x(started)}
            y={y}
            width={Math.max(3, x(ended) - x(started))}
            height={14}
            rx={3}
          />
        )
      )}
      {(error || span.attempts.length > 1) && (
        <BarText
          text={error || `attempt ${span.attempts.length}`}
          failed={failed}
          x={x(ended)}
          y={y + 11}
          width={props.width}
          room={x(ended) - x(span.attempts.at(-1)?.startedAt ?? started)}
          start={x(span.queuedAt)}
        />
      )}
    </g>
  );
}

/** The name of a row's call, with its worker below where there is no column for it. */
function Name(props: { row: TimelineRow; y: number; isNarrow: boolean }) {
  const { row, y, isNarrow } = props;
  const { span } = row;
  const indent = 26 + row.depth * 16;
  const name = span.hidden ? "not visible to you" : (span.operationId ?? "");
  const shown = row.count > 1 ? `${name} × ${row.count}` : name;
  const most = Math.max(8, Math.floor(((isNarrow ? NARROW : 244) - indent) / 7.3));
  return (
    <>
      {isNarrow && (
        <text class="wk narrow" x={indent} y={y + 20}>
          {span.worker}
        </text>
      )}
      <text class={`mono ${span.outcome === "failed" ? "terr" : ""}`} x={indent} y={y + (isNarrow ? 6 : 11)}>
        {shown.length > most ? `${shown.slice(0, most - 1)}…` : shown}
        <tspan class="arg" dx={6}>
          {shown.length + (span.label?.length ?? 0) + 1 <= most ? span.label : ""}
        </tspan>
      </text>
    </>
  );
}

/** The label after a bar; without room at the right, inside it or before it. */
function BarText(props: {
  text: string;
  failed: boolean;
  x: number;
  y: number;
  width: number;
  room: number;
  start: number;
}) {
  const fits = props.x <= props.width - TEXT_ROOM;
  const isInside = !fits && props.room >= TEXT_ROOM;
  if (!fits && !isInside && props.start < LEFT + TEXT_ROOM) return null;
  const x = fits ? props.x + 8 : isInside ? props.x - 8 : props.start - 8;
  return (
    <text
      class={isInside ? "onbar" : props.failed ? "terr" : ""}
      x={x}
      y={props.y}
      text-anchor={fits ? "start" : "end"}
    >
      {props.text}
    </text>
  );
}

function Attempts(
  props: WaterfallProps & { row: TimelineRow; y: number; x: (at: number) => number; hue: string; ended: number },
) {
  const { x, y } = props;
  const { attempts } = props.row.span;
  return (
    <>
      {attempts.map((attempt, index) => {
        const until = attempt.endedAt ?? props.ended;
        const next = attempts[index + 1];
        const width = Math.max(3, x(until) - x(attempt.startedAt));
        return (
          <g key={attempt.startedAt}>
            <rect
              class={attempt.code ? "fe" : props.hue}
              x={x(attempt.startedAt)}
              y={y}
              width={width}
              height={14}
              rx={3}
            />
            {attempt.status && width > 34 && (
              <text class="onbar" x={x(attempt.startedAt) + 8} y={y + 11}>
                {attempt.status}
              </text>
            )}
            {next && <path class="st dash" d={`M${x(until)} ${y + 7}H${x(next.startedAt)}`} />}
          </g>
        );
      })}
    </>
  );
}
