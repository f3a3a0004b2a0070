/** A virtual list of rows of equal height: only visible rows are rendered. */

import type { ComponentChildren, HTMLAttributes, RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

interface VirtualListProps extends Omit<HTMLAttributes<HTMLDivElement>, "children"> {
  count: number;
  height: number;
  /** The row that stays visible. */
  shown?: number | undefined;
  row: (index: number) => ComponentChildren;
  /** Called with the range of visible rows. */
  window?: (from: number, to: number) => void;
}

const SPARE = 8;

export function VirtualList({ count, height, shown, row, window: tell, class: more, ...rest }: VirtualListProps) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 800 });
  const measure = () => {
    const element = box.current;
    if (element) setView({ top: element.scrollTop, height: element.clientHeight || 800 });
  };
  useLayoutEffect(measure, []);
  useEffect(() => {
    const observer = new ResizeObserver(measure);
    if (box.current) observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element || shown === undefined || shown < 0) return;
    const top = shown * height;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + height > element.scrollTop + element.clientHeight)
      element.scrollTop = top + height - element.clientHeight;
  }, [shown, height]);
  const from = Math.max(0, Math.floor(view.top / height) - SPARE);
  const to = Math.min(count, Math.ceil((view.top + view.height) / height) + SPARE);
  useEffect(() => tell?.(from, to), [from, to]);
  const rows = [];
  for (let index = from; index < to; index++) rows.push(row(index));
  return (
    <div {...rest} class={`virtual ${more ?? ""}`} ref={box} onScroll={measure}>
      <div class="space" style={{ height: `${count * height}px` }}>
        <div class="window" style={{ transform: `translateY(${from * height}px)` }}>
          {rows}
        </div>
      </div>
    </div>
  );
}

const NEARBY = 180;

/** The rows near the viewport, of a list that scrolls with the pane around it; all rows of a short list. */
export function useNearby(
  box: RefObject<HTMLElement | null>,
  count: number,
  height: number,
): { from: number; to: number } {
  const [from, setFrom] = useState(0);
  const isLong = count > NEARBY;
  useEffect(() => {
    if (!isLong) return setFrom(0);
    const pane = box.current?.closest<HTMLElement>(".body, .virtual");
    const measure = () => {
      const top = box.current?.getBoundingClientRect().top ?? 0;
      const above = (pane?.getBoundingClientRect().top ?? 0) - top;
      setFrom(Math.max(0, Math.floor(above / height / 20) * 20 - 40));
    };
    measure();
    pane?.addEventListener("scroll", measure, { passive: true });
    return () => pane?.removeEventListener("scroll", measure);
  }, [isLong, height]);
  const first = Math.min(from, Math.max(0, count - NEARBY));
  return { from: first, to: Math.min(count, first + NEARBY) };
}

/** The body of a table with rows of equal height: those near the viewport if it is long. */
export function Rows(props: { count: number; row: (index: number) => ComponentChildren }) {
  const { count, row } = props;
  const box = useRef<HTMLTableSectionElement>(null);
  const [height, setHeight] = useState(45);
  const { from, to } = useNearby(box, count, height);
  useLayoutEffect(() => {
    const first = box.current?.querySelector("tr:not(.space)");
    if (first) setHeight(first.getBoundingClientRect().height || height);
  }, [count > 0]);
  const rows = [];
  for (let index = from; index < to; index++) rows.push(row(index));
  return (
    <tbody ref={box}>
      <Spacer height={from * height} />
      {rows}
      <Spacer height={(count - to) * height} />
    </tbody>
  );
}

/** The space of rows that are not near the viewport. */
export function Spacer(props: { height: number }) {
  return props.height > 0 ? <tr class="space" style={{ height: `${props.height}px` }} /> : null;
}
