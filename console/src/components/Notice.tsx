/** Notices, loading rows, empty screens, and the failure of a screen. */

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { RequestError } from "../api/client";
import type { Problem } from "../api/types";
import { Button } from "./Button";
import { Icon } from "./Icon";

export function Notice(props: { look?: "w" | "e"; children: ComponentChildren }) {
  const isError = props.look === "e";
  return (
    <div class={`note ${isError ? "e" : ""}`} role={isError ? "alert" : undefined}>
      <Icon name={isError ? "error" : "warning"} small />
      <div class="grow">{props.children}</div>
    </div>
  );
}

/** Grey placeholder rows of the final height, shown after a short delay. */
export function Loading(props: { rows?: number; height?: number }) {
  const [isLate, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), 150);
    return () => clearTimeout(timer);
  }, []);
  if (!isLate) return <div aria-busy="true" />;
  return (
    <div aria-busy="true" class="col fade" style={{ padding: "16px 24px" }}>
      {Array.from({ length: props.rows ?? 6 }, (_, index) => (
        <div key={index} class="skeleton" style={{ height: `${(props.height ?? 44) - 16}px` }} />
      ))}
    </div>
  );
}

export function Empty(props: { children: ComponentChildren; command?: string }) {
  return (
    <div class="empty">
      <p>{props.children}</p>
      {props.command && <code>{props.command}</code>}
    </div>
  );
}

/** The error of a screen whose data could not be fetched; the rest of the page works. */
export function Failed(props: { problem: Problem; retry: () => void }) {
  const { problem } = props;
  return (
    <div class="empty">
      <div class="note e" role="alert">
        <Icon name="error" small />
        <div>
          <b>{problem.detail}</b> <code class="err">{problem.code}</code>
        </div>
      </div>
      <Button icon="again" onClick={props.retry}>
        Retry
      </Button>
    </div>
  );
}

/** Data that a screen fetches, again whenever one of `on` changes. */
export function useFetched<T>(
  fetch: () => Promise<T>,
  on: unknown[],
): { data: T | undefined; problem: Problem | undefined; again: () => void } {
  const [state, setState] = useState<{ data?: T; problem?: Problem }>({});
  const [count, setCount] = useState(0);
  useEffect(() => {
    let isCurrent = true;
    fetch().then(
      (data) => isCurrent && setState({ data }),
      (error: unknown) => {
        if (!(error instanceof RequestError)) throw error;
        if (isCurrent) setState((old) => ({ ...old, problem: error.problem }));
      },
    );
    return () => {
      isCurrent = false;
    };
  }, [...on, count]);
  return { data: state.data, problem: state.problem, again: () => setCount(count + 1) };
}
