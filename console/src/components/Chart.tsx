/** A chart over time, with its legend. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { Plot, Series } from "../plot";

interface ChartProps {
  title: string;
  times: number[];
  series: Series[];
  unit?: string;
  height?: number;
  click?: (at: number) => void;
}

const KEYS: Record<string, string> = { c1: "", c2: "k2", c3: "k3", err: "ke" };

export function Chart(props: ChartProps) {
  const { times, series, unit = "", height = 150 } = props;
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<Plot | undefined>(undefined);
  const [isReady, setReady] = useState(false);
  useEffect(() => {
    let isHere = true;
    import("../plot").then(
      ({ openPlot }) => {
        if (!isHere || !host.current) return;
        plot.current = openPlot(host.current, { times, series, unit, height, click: props.click });
        setReady(true);
      },
      () => host.current?.append("The chart could not be loaded: open “Charts as a table”."),
    );
    return () => {
      isHere = false;
      plot.current?.close();
      plot.current = undefined;
    };
  }, []);
  useEffect(() => plot.current?.update({ times, series, unit, height, click: props.click }), [times, series, isReady]);
  return (
    <div>
      <div class="row mb">
        <h2>{props.title}</h2>
        <span class="right row">
          {series.map((each) => (
            <span class="key" key={each.label}>
              <i class={KEYS[each.colour] ?? ""} />
              {each.label}
            </span>
          ))}
        </span>
      </div>
      <div class="chart" ref={host} aria-hidden="true" />
    </div>
  );
}

export function Sparkline(props: { values: number[]; isBad?: boolean }) {
  const { values } = props;
  if (values.length < 2) return null;
  const high = Math.max(...values, 1);
  const path = values
    .map(
      (value, index) =>
        `${index ? "L" : "M"}${((index / (values.length - 1)) * 80).toFixed(1)} ${(19 - (value / high) * 17).toFixed(1)}`,
    )
    .join("");
  return (
    <svg width="80" height="20" viewBox="0 0 80 20" aria-hidden="true">
      <path class={props.isBad ? "se" : "st"} d={path} />
    </svg>
  );
}

export function LoadBar(props: { used: number; slots: number | undefined; isFull: boolean }) {
  const { used, slots } = props;
  const share = slots ? Math.min(1, used / slots) : 0;
  return (
    <div class="row">
      {slots !== undefined && (
        <svg width="72" height="6" aria-hidden="true">
          <rect class="fs" width="72" height="6" rx="3" />
          <rect class={props.isFull ? "fw" : "f1"} width={Math.max(used ? 4 : 0, share * 72)} height="6" rx="3" />
        </svg>
      )}
      <span class="n">
        {used}
        {slots !== undefined && <span class="t3"> / {slots}</span>}
      </span>
    </div>
  );
}
