/** The server's recorded calls, newest first; calls of this page can be reopened and compared. */

import { useEffect, useState } from "preact/hooks";
import { to } from "../addresses";
import { api, RequestError } from "../api/client";
import type { Problem, Span } from "../api/types";
import { count, duration, moment, size } from "../format";
import { go } from "../router";
import { clearHistory, history } from "../state/history";
import { listen } from "../state/live";
import { can, exampleCall, recoveries } from "../state/session";
import { Button } from "./Button";
import { Segmented } from "./Choices";
import { Empty, Failed, Loading } from "./Notice";
import { Rows } from "./VirtualList";

type Outcome = "" | "running" | "failed" | "ok";

interface Query {
  operationId?: string | undefined;
  worker?: string | undefined;
  since?: number | undefined;
  until?: number | undefined;
}

const REFRESH_MS = 1_000;

export function CallsTable(props: Query & { outcome?: string | undefined }) {
  const [outcome, setOutcome] = useState<Outcome>((props.outcome ?? "") as Outcome);
  const [calls, setCalls] = useState<Span[] | undefined>();
  const [next, setNext] = useState<string | undefined>();
  const [problem, setProblem] = useState<Problem | undefined>();
  const load = (cursor?: string) =>
    api
      .calls({
        operation: props.operationId,
        worker: props.worker,
        since: props.since,
        until: props.until,
        outcome,
        cursor,
        limit: 100,
        roots: props.worker ? undefined : 1,
      })
      .then(
        (page) => {
          setProblem(undefined);
          setCalls((old) => (cursor ? [...(old ?? []), ...page.calls] : page.calls));
          setNext(page.next);
        },
        (error: unknown) => {
          if (!(error instanceof RequestError)) throw error;
          setProblem(error.problem);
        },
      );
  useEffect(() => {
    if (!can("calls")) return;
    void load();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const stop = listen((events) => {
      if (timer || !events.some((event) => event.type === "call.started" || event.type === "call.ended")) return;
      timer = setTimeout(() => {
        timer = undefined;
        void load();
      }, REFRESH_MS);
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [props.operationId, props.worker, props.since, outcome, recoveries.value, can("calls")]);
  if (!can("calls")) return <OwnCalls operationId={props.operationId} />;
  if (problem && !calls) return <Failed problem={problem} retry={() => void load()} />;
  return (
    <>
      <div class="bar lined">
        <Segmented
          label="Outcome"
          value={outcome || "all"}
          choose={(id) => setOutcome(id === "all" ? "" : id)}
          choices={[
            { id: "all", label: "All" },
            { id: "running", label: "Running" },
            { id: "failed", label: "Failed" },
            { id: "ok", label: "Ok" },
          ]}
        />
        <span class="right row">
          <span class="t3 hide">{count(history.value.length)} kept in this browser</span>
          <Button look="x" disabled={history.value.length === 0} onClick={() => void clearHistory()}>
            Clear
          </Button>
        </span>
      </div>
      <div class="virtual">
        {!calls ? (
          <Loading />
        ) : calls.length === 0 ? (
          <Empty command={exampleCall("call", props.operationId)}>No calls match.</Empty>
        ) : (
          <table>
            <thead>
              <tr>
                <th>Started</th>
                <th>Operation</th>
                <th>Outcome</th>
                <th class="num">Duration</th>
                <th class="hide">Caller</th>
                <th class="hide">Protocol</th>
                <th class="hide">Worker</th>
                <th class="num hide">Size</th>
                <th>
                  <span class="hidden">Trace</span>
                </th>
              </tr>
            </thead>
            <Rows
              count={calls.length}
              row={(index) => <CallRow key={calls[index]?.requestId} span={calls[index] as Span} />}
            />
          </table>
        )}
        {next && (
          <div class="bar">
            <Button onClick={() => void load(next)}>Older calls</Button>
          </div>
        )}
      </div>
    </>
  );
}

function CallRow(props: { span: Span }) {
  const { span } = props;
  const failed = span.outcome === "failed";
  return (
    <tr
      class={`go ${failed ? "bad" : ""}`}
      onClick={(event) => !(event.target as Element).closest("a") && go(to.call(span.requestId))}
    >
      <td class="n">{moment(span.queuedAt)}</td>
      <td>
        <a class="m" href={to.call(span.requestId)}>
          {span.operationId ?? "not visible to you"}
        </a>{" "}
        <span class="t3">{span.label}</span>
      </td>
      <td>
        <OutcomeText span={span} />
      </td>
      <td class="num">{span.endedAt ? duration(span.endedAt - span.queuedAt) : ""}</td>
      <td class="t2 hide">{span.caller ?? "anonymous"}</td>
      <td class="t2 hide">{span.protocol}</td>
      <td class="t2 hide">{span.worker}</td>
      <td class="num t2 hide">{span.bytes === undefined ? "" : size(span.bytes)}</td>
      <td>
        <a class="acc" href={to.trace(span.traceId, span.requestId)}>
          Trace
        </a>
      </td>
    </tr>
  );
}

export function OutcomeText(props: { span: Span }) {
  const { span } = props;
  if (!span.outcome) {
    const items = span.items ? ` ${count(span.items)} items` : "";
    return (
      <span class="row acc">
        <span class="dot a" />
        {span.startedAt ? "running" : "queued"}
        {items}
      </span>
    );
  }
  const text = [span.status, span.code ?? (span.outcome === "ok" ? "ok" : span.outcome)].filter(Boolean).join(" ");
  return (
    <span class={`row ${span.outcome === "failed" ? "err" : span.outcome === "cancelled" ? "t2" : ""}`}>
      <span class={`dot ${span.outcome === "failed" ? "e" : span.outcome === "cancelled" ? "o" : ""}`} />
      {text}
    </span>
  );
}

/** Without the right to list the server's calls, the browser's own calls are listed. */
function OwnCalls(props: { operationId: string | undefined }) {
  const own = history.value.filter((call) => !props.operationId || call.operationId === props.operationId);
  if (own.length === 0)
    return <Empty command={exampleCall("call", props.operationId)}>No calls from this browser yet.</Empty>;
  return (
    <div class="virtual">
      <table>
        <thead>
          <tr>
            <th>Started</th>
            <th>Operation</th>
            <th>Outcome</th>
            <th class="num">Duration</th>
          </tr>
        </thead>
        <tbody>
          {own.map((call) => (
            <tr key={call.id} class={call.outcome === "failed" ? "bad" : ""}>
              <td class="n">{moment(call.at)}</td>
              <td>
                <a class="m" href={to.call(call.id)}>
                  {call.operationId}
                </a>
              </td>
              <td class={call.outcome === "failed" ? "err" : ""}>{call.label}</td>
              <td class="num">{duration(call.durationMs)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
