/** The line above a result: outcome, source, time, size and a link to its trace. */

import { useEffect, useState } from "preact/hooks";
import { to } from "../addresses";
import { clock, duration, size } from "../format";
import { type Run, statusOf } from "../state/runs";
import { can } from "../state/session";
import { Icon } from "./Icon";

export function StatusLine(props: { run: Run }) {
  const { run } = props;
  const isRunning = run.state === "running";
  const failed = run.outcome === "failed" || run.outcome === "cancelled";
  const source = sourceText(run);
  return (
    <div class={`stat grow ${failed ? "e" : ""}`} data-outcome={run.outcome ?? "running"}>
      <b class={isRunning ? "acc" : failed ? "err" : "ok"}>
        {isRunning ? <span class="dot a" /> : <Icon name={failed ? "error" : "check"} small />}
        {statusOf(run)}
      </b>
      {source && <span class={failed ? "" : "hide"}>{source}</span>}
      <span class="n">{isRunning ? <Elapsed since={run.startedAt} /> : duration(run.durationMs ?? 0)}</span>
      {run.bytes !== undefined && run.outcome === "ok" && <span class="n">{size(run.bytes)}</span>}
      <span class="n t3 hide">{clock(run.startedAt)}</span>
      {can("calls") && (
        <a class="right acc" href={to.trace(run.traceId)}>
          Trace
        </a>
      )}
    </div>
  );
}

function sourceText(run: Run): string {
  const upstream = run.problem?.details?.statusCode;
  if (upstream !== undefined) return `http ${String(upstream)}`;
  if (run.problem) return run.problem.status ? `HTTP ${run.problem.status}` : "";
  return typeof run.meta?.source === "string" ? run.meta.source : "";
}

/** Elapsed time, updated ten times a second. */
export function Elapsed(props: { since: number }) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 100);
    return () => clearInterval(timer);
  }, []);
  return <>{`${((now - props.since) / 1000).toFixed(1)} s`}</>;
}
