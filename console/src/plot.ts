/** uPlot with the page's colours. */

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

export interface Series {
  label: string;
  /** The name of a colour: c1, err. */
  colour: string;
  values: (number | null)[];
}

export interface PlotOptions {
  times: number[];
  series: Series[];
  unit: string;
  height: number;
  /** Called with the time of a click, in milliseconds. */
  click?: ((at: number) => void) | undefined;
}

export interface Plot {
  update(options: PlotOptions): void;
  close(): void;
}

function resolved(element: Element, name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  element.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

function dataOf(options: PlotOptions): uPlot.AlignedData {
  return [options.times.map((time) => time / 1_000), ...options.series.map((each) => each.values)];
}

/** Seconds between two times of an axis: none below a second, as times are shown in seconds. */
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200];

/** Whether a series has one value only: it is a point, as there is no line. */
function isAlone(plot: uPlot, series: number): boolean {
  const values = [...(plot.data[series] ?? [])];
  return values.filter((value) => typeof value === "number").length === 1;
}

/** Format hours and minutes; with seconds for a range of a few minutes. */
function timeText(time: number, shown: number): string {
  return new Date(time * 1_000).toTimeString().slice(0, shown < 300 ? 8 : 5);
}

/** Format a number with its unit; long times in seconds. */
function levelText(value: number, unit: string, highest: number): string {
  const isLong = unit.trim() === "ms" && highest >= 1_000;
  return isLong ? `${(value / 1_000).toLocaleString("en")} s` : `${value.toLocaleString("en")}${unit}`;
}

export function openPlot(host: HTMLElement, options: PlotOptions): Plot {
  const text = resolved(host, "text-3");
  const line = resolved(host, "line");
  const font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const axis = { stroke: text, font, grid: { stroke: line, width: 1 }, ticks: { show: false }, gap: 4 };
  let click = options.click;
  const plot = new uPlot(
    {
      width: host.clientWidth || 400,
      height: options.height,
      legend: { show: false },
      padding: [8, 28, 0, 0], // at the right, room for half of the last time label
      cursor: { y: false, points: { size: 6 }, drag: { setScale: false, x: false, y: false } },
      scales: { y: { range: (_, __, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [
        {
          ...axis,
          grid: { show: false },
          space: 80,
          incrs: STEPS,
          size: 32,
          gap: 10,
          values: (_, times) => times.map((time) => timeText(time, (times.at(-1) ?? 0) - (times[0] ?? 0))),
        },
        {
          ...axis,
          size: 54,
          space: 40,
          values: (_, values) => values.map((value) => levelText(value, options.unit, values.at(-1) ?? 0)),
        },
      ],
      series: [
        {},
        ...options.series.map((each) => ({
          label: each.label,
          stroke: resolved(host, each.colour),
          width: 1.5,
          points: { size: 4, show: isAlone },
          spanGaps: true,
        })),
      ],
    },
    dataOf(options),
    host,
  );
  const pressed = () => {
    const at = plot.cursor.left;
    if (at !== undefined && at >= 0) click?.(plot.posToVal(at, "x") * 1_000);
  };
  plot.over.addEventListener("click", pressed);
  const observer = new ResizeObserver(
    () => host.clientWidth && plot.setSize({ width: host.clientWidth, height: options.height }),
  );
  observer.observe(host);
  return {
    update(next) {
      click = next.click;
      plot.setData(dataOf(next));
    },
    close() {
      observer.disconnect();
      plot.destroy();
    },
  };
}
