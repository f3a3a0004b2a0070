/** A failed call: the error card, its place among nested calls, and the upstream's response. */

import { useEffect, useState } from "preact/hooks";
import { to } from "../addresses";
import { api, RequestError } from "../api/client";
import type { Problem, Span } from "../api/types";
import { LocalDocument } from "../data/document";
import { duration, plural, size } from "../format";
import type { Json } from "../json/value";
import type { Run } from "../state/runs";
import { can } from "../state/session";
import { LongText } from "./Blocks";
import { ErrorCard, failedPath } from "./ErrorCard";
import { Tree } from "./Tree";

export function ResultError(props: { run: Run; problem: Problem }) {
  const { run, problem } = props;
  const [spans, setSpans] = useState<Span[]>([]);
  useEffect(() => {
    setSpans([]);
    if (!can("calls") || run.status === 0) return;
    let isCurrent = true;
    api.trace(run.traceId).then(
      (trace) => isCurrent && setSpans(trace.spans),
      (error: unknown) => {
        if (!(error instanceof RequestError)) throw error; // Without a trace, only the card is shown.
      },
    );
    return () => {
      isCurrent = false;
    };
  }, [run.id]);
  const body = problem.details?.body;
  return (
    <>
      <ErrorCard problem={problem} path={failedPath(spans)} />
      {spans.length > 1 && <WhereItFailed spans={spans} traceId={run.traceId} />}
      {body !== undefined && <UpstreamBody body={body} type={String(problem.details?.contentType ?? "")} />}
    </>
  );
}

function WhereItFailed(props: { spans: Span[]; traceId: string }) {
  const path = failedPath(props.spans);
  const shown = path.length > 0 ? path : props.spans.slice(0, 4);
  const [first] = shown;
  if (!first) return null;
  const begin = first.queuedAt;
  const end = Math.max(...shown.map((span) => span.endedAt ?? span.queuedAt), begin + 0.001);
  const x = (at: number) => 200 + ((at - begin) / (end - begin)) * 330;
  return (
    <div class="card">
      <div class="row mb">
        <h2>Failed calls</h2>
        <a class="t3 right" href={to.trace(props.traceId)}>
          {plural(props.spans.length, "call")} · {duration(end - begin)}
        </a>
      </div>
      <svg
        width="100%"
        height={shown.length * 27}
        viewBox={`0 0 540 ${shown.length * 27}`}
        preserveAspectRatio="xMinYMid meet"
        role="img"
        aria-label={`Failed in ${shown.map((span) => span.operationId).join(", then ")}`}
      >
        <path
          class="gl"
          d={`M200.5 0v${shown.length * 27}M310.5 0v${shown.length * 27}M420.5 0v${shown.length * 27}M530.5 0v${shown.length * 27}`}
        />
        {shown.map((span, index) => {
          const from = x(span.startedAt ?? span.queuedAt);
          const to = x(span.endedAt ?? end);
          return (
            <g key={span.requestId}>
              <text class="mono" x={index * 14} y={index * 27 + 18}>
                {(span.operationId ?? "not visible").slice(0, 22)}
              </text>
              <text x={192} y={index * 27 + 17} text-anchor="end">
                {duration((span.endedAt ?? end) - span.queuedAt)}
              </text>
              <rect
                class={span.outcome === "failed" ? "fe" : "f1"}
                x={from}
                y={index * 27 + 8}
                width={Math.max(2, to - from)}
                height={10}
                rx={2}
              />
            </g>
          );
        })}
      </svg>
    </div>
  );
}

function UpstreamBody(props: { body: Json; type: string }) {
  const text = typeof props.body === "string" ? props.body : JSON.stringify(props.body);
  return (
    <div class="card">
      <div class="row mb">
        <h2>Upstream body</h2>
        {props.type && <span class="chip m">{props.type}</span>}
        <span class="t3 right">{size(new TextEncoder().encode(text).length)}</span>
      </div>
      {typeof props.body === "object" && props.body !== null ? (
        <Tree document={new LocalDocument(props.body)} label="Upstream body" />
      ) : (
        <LongText text={text} />
      )}
    </div>
  );
}
