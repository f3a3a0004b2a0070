/** Metrics of a time range, updated by the feed. */

import { useEffect, useState } from "preact/hooks";
import { api, RequestError } from "../api/client";
import type { Metrics, MetricsRow, Problem } from "../api/types";
import { listen } from "./live";
import { can, recoveries } from "./session";

export type Range = "15m" | "1h" | "6h";
export const RANGES: { id: Range; label: string }[] = [
  { id: "15m", label: "15 min" },
  { id: "1h", label: "1 h" },
  { id: "6h", label: "6 h" },
];

const SECONDS: Record<Range, number> = { "15m": 900, "1h": 3_600, "6h": 21_600 };
const COLUMNS = ["t", "ok", "failed", "p50", "p95", "p99", "inFlight", "queued"] as const;

/** Append a row to the columns and remove rows outside the range. */
export function withRow(metrics: Metrics, row: MetricsRow, range: Range): Metrics {
  const most = SECONDS[range] / metrics.step;
  const next = { step: metrics.step } as Record<string, unknown>;
  for (const column of COLUMNS) next[column] = [...metrics[column], row[column]].slice(-most);
  return next as unknown as Metrics;
}

export function useMetrics(range: Range, filter: { operation?: string | undefined; worker?: string | undefined }) {
  const [metrics, setMetrics] = useState<Metrics | undefined>();
  const [problem, setProblem] = useState<Problem | undefined>();
  const [newest, setNewest] = useState<MetricsRow | undefined>();
  const key = `${range} ${filter.operation} ${filter.worker}`;
  const isFiltered = Boolean(filter.operation || filter.worker);
  const load = () =>
    api.metrics({ range, ...filter }).then(
      (read) => {
        setMetrics(read);
        setProblem(undefined);
      },
      (error: unknown) => {
        if (!(error instanceof RequestError)) throw error;
        setProblem(error.problem);
      },
    );
  useEffect(() => {
    if (!can("metrics")) return;
    void load();
    // The feed has one-second rows of all operations; other steps and filters are fetched again.
    const every =
      range === "15m" && !isFiltered ? undefined : setInterval(() => void load(), range === "15m" ? 2_000 : 10_000);
    const stop = listen((events) => {
      for (const event of events) {
        if (event.type !== "metrics") continue;
        const row = event.data as MetricsRow;
        setNewest(row);
        if (range === "15m" && !isFiltered) setMetrics((old) => old && withRow(old, row, range));
      }
    });
    return () => {
      stop();
      clearInterval(every);
    };
  }, [key, recoveries.value, can("metrics")]);
  return { metrics, problem, newest, load };
}
