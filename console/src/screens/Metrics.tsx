/** Rates, latencies and errors over time, of all operations, or of one operation or worker. */

import { useEffect } from "preact/hooks";
import { Segmented } from "../components/Choices";
import { Charts, KeyFigures } from "../components/MetricsPanel";
import { Empty, Failed, Loading } from "../components/Notice";
import { route, setQuery } from "../router";
import { workers } from "../state/live";
import { RANGES, type Range, useMetrics } from "../state/metrics";
import { theme } from "../state/preferences";
import { can, catalogue, exampleCall } from "../state/session";

export function Metrics() {
  const { query } = route.value;
  const range = (query.get("range") ?? "15m") as Range;
  const operation = query.get("operation") ?? undefined;
  const worker = query.get("worker") ?? undefined;
  const { metrics, problem, newest, load } = useMetrics(range, { operation, worker });
  useEffect(() => {
    document.title = "Metrics – operations";
  }, []);
  if (!can("metrics")) return <Empty>You are not permitted to see this server's metrics.</Empty>;
  return (
    <>
      <header class="head flat">
        <div class="row wrap">
          <div class="grow">
            <h1>Metrics</h1>
            <div class="sub">
              {operation ?? worker ?? "All calls of this server"}; click a chart to list the calls at that time
            </div>
          </div>
          <input
            class="in small"
            type="search"
            list="operations"
            aria-label="Operation"
            placeholder="All operations"
            value={operation ?? ""}
            onChange={(event) => setQuery({ operation: event.currentTarget.value || undefined })}
          />
          <datalist id="operations">
            {catalogue.value?.operations.slice(0, 2_000).map((entry) => (
              <option key={entry.id} value={entry.id} />
            ))}
          </datalist>
          {workers.value && workers.value.length > 1 && (
            <select
              class="in small"
              aria-label="Worker"
              value={worker ?? ""}
              onChange={(event) => setQuery({ worker: event.currentTarget.value || undefined })}
            >
              <option value="">All workers</option>
              {workers.value.map((each) => (
                <option key={each.name} value={each.name}>
                  {each.name}
                </option>
              ))}
            </select>
          )}
          <Segmented label="Range" choices={RANGES} value={range} choose={(id) => setQuery({ range: id })} />
        </div>
      </header>
      {problem && !metrics ? (
        <Failed problem={problem} retry={() => void load()} />
      ) : !metrics ? (
        <Loading />
      ) : (
        <div class="virtual">
          <KeyFigures metrics={metrics} newest={operation || worker ? undefined : newest} />
          {metrics.t.length === 0 ? (
            <Empty command={exampleCall()}>No calls measured yet.</Empty>
          ) : (
            <Charts key={range + theme.value} metrics={metrics} isLarge operation={operation} worker={worker} />
          )}
        </div>
      )}
    </>
  );
}
