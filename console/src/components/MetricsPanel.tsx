/** Key figures and charts: rate, errors, latency, in flight, queued. */

import { useMemo } from "preact/hooks";
import { to } from "../addresses";
import type { Metrics, MetricsRow } from "../api/types";
import { count } from "../format";
import { go } from "../router";
import { Chart } from "./Chart";

interface Figures {
  rate: number;
  errors: number;
  p95: number | null;
  inFlight: number;
  queued: number;
}

const WINDOW = 10;

/** The figures of the last ten seconds, or of the last row where rows are longer. */
export function figuresOf(metrics: Metrics | undefined, newest: MetricsRow | undefined): Figures {
  if (!metrics || metrics.t.length === 0)
    return { rate: 0, errors: 0, p95: null, inFlight: newest?.inFlight ?? 0, queued: newest?.queued ?? 0 };
  const rows = Math.max(1, Math.min(metrics.t.length, Math.round(WINDOW / metrics.step)));
  const sum = (values: number[]) => values.slice(-rows).reduce((total, value) => total + value, 0);
  const [ok, failed] = [sum(metrics.ok), sum(metrics.failed)];
  const p95 = metrics.p95.slice(-rows).filter((value): value is number => value !== null);
  return {
    rate: (ok + failed) / (rows * metrics.step),
    errors: ok + failed > 0 ? failed / (ok + failed) : 0,
    p95: p95.length > 0 ? Math.max(...p95) : null,
    inFlight: newest?.inFlight ?? metrics.inFlight.at(-1) ?? 0,
    queued: newest?.queued ?? metrics.queued.at(-1) ?? 0,
  };
}

export function KeyFigures(props: {
  metrics: Metrics | undefined;
  newest: MetricsRow | undefined;
  slots?: number | undefined;
}) {
  const figures = figuresOf(props.metrics, props.newest);
  return (
    <div class="kpis">
      <Figure
        name="Calls/s"
        value={figures.rate < 10 && figures.rate > 0 ? figures.rate.toFixed(1) : count(figures.rate)}
      />
      <Figure name="Errors" value={(figures.errors * 100).toFixed(2)} unit="%" isBad={figures.errors > 0} />
      <Figure
        name="p95"
        value={figures.p95 === null ? "–" : figures.p95 < 10 ? figures.p95.toFixed(1) : count(figures.p95)}
        unit={figures.p95 === null ? "" : "ms"}
      />
      <Figure name="In flight" value={count(figures.inFlight)} unit={props.slots ? `/ ${count(props.slots)}` : ""} />
      <Figure name="Queued" value={count(figures.queued)} />
    </div>
  );
}

function Figure(props: { name: string; value: string; unit?: string; isBad?: boolean }) {
  return (
    <div class="kpi">
      <div class="t3">{props.name}</div>
      <div class={`v ${props.isBad ? "err" : ""}`}>
        {props.value} {props.unit && <small>{props.unit}</small>}
      </div>
    </div>
  );
}

/** List the calls at the clicked time. */
function openMoment(at: number, step: number, operation?: string): void {
  const since = Math.round(at - step * 1_000);
  go(to.calls({ since: String(since), until: String(Math.round(at + step * 1_000)), operation }));
}

export function Charts(props: { metrics: Metrics; isLarge?: boolean; operation?: string | undefined }) {
  const { metrics } = props;
  const { t: times, step } = metrics;
  const height = props.isLarge ? 240 : 150;
  const rate = useMemo(
    () => [
      { label: "ok", colour: "c1", values: metrics.ok.map((value) => value / step) },
      { label: "failed", colour: "err", values: metrics.failed.map((value) => value / step) },
    ],
    [metrics],
  );
  const latency = useMemo(
    () => [
      { label: "p50", colour: "c2", values: metrics.p50 },
      { label: "p95", colour: "c1", values: metrics.p95 },
      { label: "p99", colour: "c3", values: metrics.p99 },
    ],
    [metrics],
  );
  const load = useMemo(
    () => [
      { label: "in flight", colour: "c1", values: metrics.inFlight },
      { label: "queued", colour: "c3", values: metrics.queued },
    ],
    [metrics],
  );
  const click = (at: number) => openMoment(at, step, props.operation);
  return (
    <div class="charts">
      <Chart title="Calls/s" times={times} series={rate} height={height} click={click} />
      <Chart title="Latency" times={times} series={latency} unit=" ms" height={height} click={click} />
      {props.isLarge && <Chart title="Load" times={times} series={load} height={height} click={click} />}
    </div>
  );
}
