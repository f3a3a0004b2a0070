/** Workers and spokes: their state, load, rate, latency and errors. */

import { useEffect, useState } from "preact/hooks";
import { to } from "../addresses";
import { RequestError } from "../api/client";
import type { Problem, Worker } from "../api/types";
import { LoadBar, Sparkline } from "../components/Chart";
import { Segmented } from "../components/Choices";
import { Charts, KeyFigures } from "../components/MetricsPanel";
import { Empty, Failed, Loading, Notice } from "../components/Notice";
import { age, count, duration } from "../format";
import { route, setQuery } from "../router";
import { loadWorkers, workers } from "../state/live";
import { RANGES, type Range, useMetrics } from "../state/metrics";
import { theme } from "../state/preferences";
import { can, isLost, recoveries, session } from "../state/session";

const REFRESH_MS = 2_000;

export function Workers() {
  const range = (route.value.query.get("range") ?? "15m") as Range;
  const { metrics, newest } = useMetrics(range, {});
  const [problem, setProblem] = useState<Problem | undefined>();
  const load = () =>
    loadWorkers().then(
      () => setProblem(undefined),
      (error: unknown) => {
        if (!(error instanceof RequestError)) throw error;
        setProblem(error.problem);
      },
    );
  useEffect(() => {
    document.title = "Workers – operations";
    void load();
    const timer = setInterval(() => !isLost.peek() && !document.hidden && void load(), REFRESH_MS);
    return () => clearInterval(timer);
  }, [recoveries.value, can("workers")]);
  if (!can("workers")) return <Empty>You are not permitted to see this server's workers.</Empty>;
  const all = workers.value;
  const lost = all?.filter((worker) => worker.state === "lost") ?? [];
  const slots = all?.reduce((sum, worker) => sum + (worker.slots ?? 0), 0);
  return (
    <>
      <header class="head flat">
        <div class="row">
          <div class="grow">
            <h1>Workers</h1>
            <div class="sub">{all && summary(all)}</div>
          </div>
          <Segmented label="Range" choices={RANGES} value={range} choose={(id) => setQuery({ range: id })} />
        </div>
      </header>
      {lost.map((worker) => (
        <Notice key={worker.name} look="e">
          <div class="row">
            <span>
              <b>
                {worker.name} disconnected {worker.lostAt ? `${age(worker.lostAt)} ago` : ""}.
              </b>{" "}
              {worker.reason ?? "Its calls in flight failed with UNAVAILABLE."}
            </span>
            <a class="acc right" href={to.calls({ worker: worker.name, outcome: "failed" })}>
              Show calls
            </a>
          </div>
        </Notice>
      ))}
      {problem && !all ? (
        <Failed problem={problem} retry={() => void load()} />
      ) : !all ? (
        <Loading />
      ) : (
        <div class="virtual">
          <KeyFigures metrics={metrics} newest={newest} slots={slots || undefined} />
          {metrics && metrics.t.length > 0 && <Charts key={range + theme.value} metrics={metrics} />}
          {all.length === 0 ? <Empty command="ops worker">No workers connected.</Empty> : <WorkerTable workers={all} />}
        </div>
      )}
    </>
  );
}

function summary(all: Worker[]): string {
  const states = (["ready", "saturated", "draining", "lost"] as const)
    .map((state) => [all.filter((worker) => worker.state === state).length, state] as const)
    .filter(([amount]) => amount > 0)
    .map(([amount, state]) => `${amount} ${state}`);
  const server = session.value?.server;
  const transports = [...new Set(all.map((worker) => worker.transport))].filter(Boolean);
  return [states.join(", "), server && `${server.kind} ${server.name}`, ...transports].filter(Boolean).join(" · ");
}

const LOOKS = { ready: ["", ""], saturated: ["warn", "w"], draining: ["t2", "o"], lost: ["err", "e"] } as const;

function WorkerTable(props: { workers: Worker[] }) {
  return (
    <div class="scrollx" tabIndex={0} role="region" aria-label="Workers">
      <table>
        <thead>
          <tr>
            <th>Name</th>
            <th>Transport</th>
            <th>State</th>
            <th>In flight</th>
            <th class="num">Calls/s</th>
            <th>Last 5 min</th>
            <th class="num">p95</th>
            <th class="num">Errors</th>
            <th class="num">Operations</th>
            <th>Process</th>
            <th class="num">Up</th>
          </tr>
        </thead>
        <tbody>
          {props.workers.map((worker) => (
            <WorkerRow key={worker.name} worker={worker} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function WorkerRow(props: { worker: Worker }) {
  const { worker } = props;
  const [text, dot] = LOOKS[worker.state];
  const isLostNow = worker.state === "lost";
  return (
    <tr class={isLostNow ? "bad" : ""}>
      <td>
        <a class="m w5" href={to.calls({ worker: worker.name })}>
          {worker.name}
        </a>
      </td>
      <td class="t2">{[worker.kind, worker.transport].filter(Boolean).join(", ")}</td>
      <td>
        <span class={`row ${text}`}>
          <span class={`dot ${dot}`} />
          {isLostNow && worker.lostAt ? `lost ${age(worker.lostAt)} ago` : worker.state}
        </span>
      </td>
      <td>
        <LoadBar used={worker.inFlight} slots={worker.slots} isFull={worker.state === "saturated"} />
      </td>
      <td class="num">{worker.rate < 10 ? Number(worker.rate.toFixed(1)) : count(worker.rate)}</td>
      <td>
        <Sparkline values={worker.rates ?? []} isBad={isLostNow} />
      </td>
      <td class="num">{typeof worker.p95 === "number" ? duration(worker.p95) : "–"}</td>
      <td class={`num ${worker.errorRate > 0 ? "err" : "t2"}`}>{(worker.errorRate * 100).toFixed(1)} %</td>
      <td class="num">{count(worker.operations)}</td>
      <td class="t3 m">{[worker.host, worker.pid].filter(Boolean).join(" ")}</td>
      <td class="num t3">{worker.since && !isLostNow ? age(worker.since) : "–"}</td>
    </tr>
  );
}
