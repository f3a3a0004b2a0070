/** Key figures and charts: rate, errors, latency, in flight, queued. */

import { useMemo, useState } from "preact/hooks";
import { to } from "../addresses";
import type { Metrics, MetricsRow } from "../api/types";
import { clock, count, duration } from "../format";
import { go } from "../router";
import { Button } from "./Button";
import { Chart } from "./Chart";
import { Rows } from "./VirtualList";

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

/** The link to the calls at one point of a chart. */
function momentOf(at: number, step: number, { operation, worker }: Shown): string {
  const since = Math.round(at - step * 1_000);
  return to.calls({ since: String(since), until: String(Math.round(at + step * 1_000)), operation, worker });
}

interface Shown {
  metrics: Metrics;
  operation?: string | undefined;
  worker?: string | undefined;
}

const COLUMNS = ["p50", "p95", "p99"] as const;

/** The numbers of the charts, newest first; each time links to its calls. */
function Numbers(props: Shown) {
  const { metrics } = props;
  const { t: times, step } = metrics;
  const rate = (value: number | undefined) => Number(((value ?? 0) / step).toFixed(2));
  return (
    <table>
      <thead>
        <tr>
          <th>Time</th>
          {["Ok/s", "Failed/s", ...COLUMNS, "In flight", "Queued"].map((name) => (
            <th class="num" key={name}>
              {name}
            </th>
          ))}
        </tr>
      </thead>
      <Rows
        count={times.length}
        row={(index) => {
          const at = times.length - 1 - index;
          const failed = metrics.failed[at];
          return (
            <tr key={times[at]}>
              <td>
                <a class="acc n" href={momentOf(times[at] as number, step, props)}>
                  {clock(times[at] as number)}
                </a>
              </td>
              <td class="num">{rate(metrics.ok[at])}</td>
              <td class={`num ${failed ? "err" : ""}`}>{rate(failed)}</td>
              {COLUMNS.map((name) => (
                <td class="num" key={name}>
                  {typeof metrics[name][at] === "number" ? duration(metrics[name][at]) : "–"}
                </td>
              ))}
              <td class="num">{metrics.inFlight[at]}</td>
              <td class="num">{metrics.queued[at]}</td>
            </tr>
          );
        }}
      />
    </table>
  );
}

export function Charts(props: Shown & { isLarge?: boolean }) {
  const { metrics } = props;
  const [hasTable, setTable] = useState(false);
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
  const click = (at: number) => go(momentOf(at, step, props));
  return (
    <>
      <div class="charts">
        <Chart title="Calls/s" times={times} series={rate} height={height} click={click} />
        <Chart title="Latency" times={times} series={latency} unit=" ms" height={height} click={click} />
        {props.isLarge && <Chart title="Load" times={times} series={load} height={height} click={click} />}
      </div>
      <div class="bar lined">
        <Button
          look="x"
          icon={hasTable ? "down" : "right"}
          aria-expanded={hasTable}
          onClick={() => setTable(!hasTable)}
        >
          Charts as a table
        </Button>
      </div>
      {hasTable && <Numbers {...props} />}
    </>
  );
}
