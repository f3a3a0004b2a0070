/** All calls, and one call: an open stream, a call of this page, or the server's record of another call. */

import { useEffect } from "preact/hooks";
import { to } from "../addresses";
import { api, fetchCall } from "../api/client";
import type { Span } from "../api/types";
import { Button } from "../components/Button";
import { CallsTable, OutcomeText } from "../components/CallsTable";
import { ErrorCard } from "../components/ErrorCard";
import { Menu } from "../components/Menu";
import { Empty, Failed, Loading, useFetched } from "../components/Notice";
import { MetaList } from "../components/Result";
import { Tree } from "../components/Tree";
import { LocalDocument } from "../data/document";
import { duration, moment, size } from "../format";
import { parseJson, toBase64Url, writeJson } from "../json/text";
import { isObject, type Json } from "../json/value";
import { go, route } from "../router";
import { history, type PastCall } from "../state/history";
import { can, recoveries } from "../state/session";
import { streamOf } from "../state/streams";
import { Stream } from "./Stream";

export function Calls() {
  const { rest: id, query } = route.value;
  useEffect(() => {
    if (!id) document.title = "Calls – operations";
  }, [id]);
  const stream = streamOf(id);
  if (stream) return <Stream key={id} stream={stream} />;
  if (id) return <OneCall key={id} id={id} />;
  const since = Number(query.get("since")) || undefined;
  const until = Number(query.get("until")) || undefined;
  return (
    <>
      <header class="head flat">
        <h1>Calls</h1>
        <div class="sub">
          {since
            ? `Calls that started from ${moment(since)}${until ? ` to ${moment(until)}` : ""}`
            : "Newest first, live"}
          {since && (
            <>
              {" "}
              <a class="acc" href={to.calls()}>
                All
              </a>
            </>
          )}
        </div>
      </header>
      <CallsTable
        operationId={query.get("operation") ?? undefined}
        worker={query.get("worker") ?? undefined}
        outcome={query.get("outcome") ?? undefined}
        since={since}
        until={until}
      />
    </>
  );
}

function OneCall(props: { id: string }) {
  const { id } = props;
  const past = history.value.find((call) => call.id === id);
  const {
    data: span,
    problem,
    again,
  } = useFetched(async () => (can("calls") ? fetchCall(id) : null), [id, recoveries.value, can("calls")]);
  useEffect(() => {
    document.title = `${past?.outcome === "failed" || span?.outcome === "failed" ? "✗ " : ""}${past?.operationId ?? span?.operationId ?? "Call"} – operations`;
  }, [span, past]);
  useEffect(() => {
    if (span === undefined || span === null || span.outcome) return;
    const timer = setInterval(again, 1_000);
    return () => clearInterval(timer);
  }, [span]);
  if (problem && !past) return <Failed problem={problem} retry={again} />;
  if (span === undefined && !past) return <Loading />;
  if (!span && !past) {
    return <Empty>This call is unknown, or not visible to you. Only recent calls are stored.</Empty>;
  }
  return <CallPage id={id} span={span ?? undefined} past={past} refresh={again} />;
}

function CallPage(props: { id: string; span: Span | undefined; past: PastCall | undefined; refresh: () => void }) {
  const { id, span, past } = props;
  const operationId = past?.operationId ?? span?.operationId ?? "not visible to you";
  const traceId = past?.traceId ?? span?.traceId;
  const input = past?.input ?? span?.input;
  const output = outputOf(past) ?? span?.output;
  const cancel = async () => {
    await api.cancel(id);
    props.refresh();
  };
  return (
    <>
      <header class="head flat">
        <div class="row">
          <div class="grow">
            <div class="crumb">
              <a href={to.calls()}>Calls</a> › {id}
            </div>
            <div class="row wrap">
              <h1 class="m">{operationId}</h1>
              {span && <OutcomeText span={span} />}
              {!span && past && <span class={`chip ${past.outcome === "ok" ? "g" : "e"}`}>{past.label}</span>}
            </div>
          </div>
          <div class="row">
            {span?.cancellable && (
              <Button look="d" icon="stop" onClick={() => void cancel()}>
                Cancel
              </Button>
            )}
            {input !== undefined && (
              <Button
                icon="again"
                onClick={() => go(`${to.operation(operationId)}#in=${toBase64Url(writeJson(input))}`)}
              >
                Edit and run
              </Button>
            )}
            {can("calls") && span?.operationId && <CompareMenu id={id} operationId={span.operationId} />}
            {traceId && can("calls") && (
              <a class="btn" href={to.trace(traceId, id)}>
                Trace
              </a>
            )}
          </div>
        </div>
      </header>
      <div class="body col pt">
        {past?.problem ? (
          <ErrorCard problem={past.problem} />
        ) : (
          span?.message && <ErrorCard problem={{ status: 0, code: span.code ?? "", detail: span.message }} />
        )}
        <MetaList meta={facts(span, past)} />
        <Body title="Input" value={input} bytes={span?.inputBytes} />
        <Body title="Output" value={output} bytes={span?.outputBytes} />
      </div>
    </>
  );
}

/** The newest other calls of the operation, to compare one with this call. */
function CompareMenu(props: { id: string; operationId: string }) {
  return (
    <Menu class="end" look="btn" button="Compare">
      {() => <OtherCalls {...props} />}
    </Menu>
  );
}

function OtherCalls(props: { id: string; operationId: string }) {
  const { data } = useFetched(() => api.calls({ operation: props.operationId, limit: 20 }), []);
  const others = data?.calls.filter((call) => call.requestId !== props.id) ?? [];
  if (others.length === 0) return <span class="t3">{data ? "no other calls" : "…"}</span>;
  return (
    <>
      {others.map((call) => (
        <button key={call.requestId} type="button" onClick={() => go(to.compare(props.id, call.requestId))}>
          {moment(call.queuedAt)} <OutcomeText span={call} />
        </button>
      ))}
    </>
  );
}

function facts(span: Span | undefined, past: PastCall | undefined): Record<string, unknown> {
  const began = span?.queuedAt ?? past?.at;
  const took = span?.endedAt ? span.endedAt - span.queuedAt : past?.durationMs;
  const all: Record<string, unknown> = {
    started: began === undefined ? undefined : moment(began),
    duration: took === undefined ? undefined : duration(took),
    queued: span?.startedAt ? duration(span.startedAt - span.queuedAt) : undefined,
    caller: span?.caller,
    protocol: span?.protocol,
    worker: span?.worker,
    attempts: span?.attempts.length || undefined,
    items: span?.items,
    size: span?.bytes === undefined ? undefined : size(span.bytes),
    traceId: span?.traceId ?? past?.traceId,
  };
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined));
}

function outputOf(past: PastCall | undefined): Json | undefined {
  if (past?.body === undefined || past.problem) return undefined;
  const read = parseJson(past.body);
  return isObject(read) && "data" in read ? read.data : read;
}

function Body(props: { title: string; value: Json | undefined; bytes: number | undefined }) {
  const { value } = props;
  if (value === undefined) {
    return props.bytes === undefined ? null : (
      <p class="t3">
        {props.title}: {size(props.bytes)}, not kept.
      </p>
    );
  }
  const hasLines = typeof value === "object" && value !== null && Object.keys(value).length > 0;
  return (
    <section>
      <h2 class="mb">{props.title}</h2>
      {hasLines ? (
        <Tree document={new LocalDocument(value)} label={props.title} />
      ) : (
        <pre class="plain">{writeJson(value)}</pre>
      )}
    </section>
  );
}
