/** A trace: the timeline of nested calls across workers, as they happen. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { to } from "../addresses";
import { api } from "../api/client";
import { openFeed } from "../api/feed";
import type { Span } from "../api/types";
import { Button, CopyButton } from "../components/Button";
import { Segmented, Tabs } from "../components/Choices";
import { Icon } from "../components/Icon";
import { Empty, Failed, Loading, useFetched } from "../components/Notice";
import { SpanDetail, SpanTable } from "../components/SpanDetail";
import { Waterfall } from "../components/Waterfall";
import { rowsOf, type Show } from "../data/timeline";
import { duration, plural, preciseClock } from "../format";
import { route, setQuery } from "../router";
import { can, recoveries } from "../state/session";

type Tab = "timeline" | "log" | "bodies";

/** The spans of a trace: fetched once, then updated by a separate feed. */
function useSpans(traceId: string) {
  const { data, problem, again } = useFetched(() => api.trace(traceId), [traceId, recoveries.value]);
  const [changed, setChanged] = useState<ReadonlyMap<string, Span>>(new Map());
  useEffect(() => {
    setChanged(new Map());
    if (!can("feed")) return;
    return openFeed({
      topics: "calls",
      trace: traceId,
      receive: (events) => {
        const spans = events.filter((event) => event.type.startsWith("call.")).map((event) => event.data as Span);
        if (events.some((event) => event.type === "overflow")) again();
        if (spans.length > 0)
          setChanged((old) => new Map([...old, ...spans.map((span): [string, Span] => [span.requestId, span])]));
      },
    });
  }, [traceId, can("feed")]);
  const spans = useMemo(() => {
    if (!data) return changed.size > 0 ? [...changed.values()] : undefined;
    const known = new Map(data.spans.map((span) => [span.requestId, span]));
    for (const [id, span] of changed) {
      const before = known.get(id);
      const message = before?.message; // events have no messages
      if (!before?.outcome || span.outcome) known.set(id, { ...span, ...(message ? { message } : {}) });
    }
    return [...known.values()];
  }, [data, changed]);
  return { spans, problem, again, isCut: data?.truncated ?? false };
}

export function Trace() {
  const { rest: traceId, query } = route.value;
  const { spans, problem, again, isCut } = useSpans(traceId);
  if (!spans && problem) {
    return problem.status === 404 ? (
      <Empty>This trace is unknown, or not visible to you. Only recent traces are stored.</Empty>
    ) : (
      <Failed problem={problem} retry={again} />
    );
  }
  if (!spans) return <Loading />;
  if (spans.length === 0) return <Empty>This trace has no calls visible to you.</Empty>;
  return <Shown traceId={traceId} spans={spans} chosen={query.get("span") ?? undefined} isCut={isCut} />;
}

/** The server's time while calls run: the newest span time plus the elapsed seconds. */
function useNow(isRunning: boolean, newest: number): number {
  const [base, setBase] = useState({ at: newest, mine: performance.now() });
  const [, tick] = useState(0);
  useEffect(
    () =>
      setBase((old) =>
        newest > old.at + (performance.now() - old.mine) || !isRunning ? { at: newest, mine: performance.now() } : old,
      ),
    [newest, isRunning],
  );
  useEffect(() => {
    if (!isRunning) return;
    const timer = setInterval(() => tick((count) => count + 1), 100);
    return () => clearInterval(timer);
  }, [isRunning]);
  return base.at + (performance.now() - base.mine);
}

function Shown(props: { traceId: string; spans: Span[]; chosen: string | undefined; isCut: boolean }) {
  const { spans, chosen } = props;
  const [tab, setTab] = useState<Tab>("timeline");
  const [show, setShow] = useState<Show>("all");
  const [toggled, setToggled] = useState<ReadonlySet<string>>(new Set());
  const begin = Math.min(...spans.map((span) => span.queuedAt));
  const newest = Math.max(...spans.map((span) => Math.max(span.endedAt ?? 0, span.startedAt ?? 0, span.queuedAt)));
  const isRunning = spans.some((span) => !span.outcome);
  const now = useNow(isRunning, newest);
  const end = isRunning ? Math.max(now, newest) : newest;
  const rows = useMemo(() => rowsOf(spans, toggled, show), [spans, toggled, show]);
  const workers = [...new Set(spans.map((span) => span.worker).filter((name): name is string => Boolean(name)))].sort();
  const colourOf = (worker: string | undefined) => (Math.max(0, workers.indexOf(worker ?? "")) % 6) + 1;
  const root = rows[0]?.span ?? (spans[0] as Span);
  const failed = spans.filter((span) => span.outcome === "failed").length;
  useEffect(() => {
    document.title = `${failed ? "✗ " : ""}Trace of ${root.operationId ?? "a call"} – operations`;
  }, [failed, root.operationId]);
  const select = (span: Span | undefined) => setQuery({ span: span?.requestId });
  const selected = spans.find((span) => span.requestId === chosen);
  const toggle = (span: Span) =>
    setToggled((old) =>
      old.has(span.requestId)
        ? new Set([...old].filter((id) => id !== span.requestId))
        : new Set([...old, span.requestId]),
    );
  const retries = spans.reduce((sum, span) => sum + Math.max(0, span.attempts.length - 1), 0);
  return (
    <>
      <header class="head about">
        <div class="row">
          <div class="grow">
            <div class="crumb">
              <a href={to.calls()}>Calls</a>
              <Icon name="right" small />
              <span>Trace {props.traceId.slice(0, 10)}</span>
            </div>
            <div class="row wrap">
              <h1 class="m">{root.operationId ?? "not visible to you"}</h1>
              <div class="chips">
                {isRunning ? (
                  <span class="chip a">
                    <span class="dot a" />
                    running {duration(end - begin)}
                  </span>
                ) : (
                  <span class={`chip ${root.outcome === "failed" ? "e" : "g"}`}>
                    {root.outcome} {duration(end - begin)}
                  </span>
                )}
                {failed > 0 && <span class="chip e">{failed} failed</span>}
              </div>
            </div>
          </div>
          <div class="row hide">
            <CopyButton icon="link" label="Link" text={() => location.href}>
              Link
            </CopyButton>
            {isRunning && (
              <Button look="d" icon="stop" onClick={() => void api.cancel(root.requestId)}>
                Cancel
              </Button>
            )}
          </div>
        </div>
        <div class="sub">
          Started {preciseClock(begin)} by {root.caller ?? "an anonymous caller"} over {root.protocol?.toUpperCase()} ·{" "}
          {plural(spans.length, "call")}
          {workers.length > 0 && ` on ${plural(workers.length, "worker")}`}
          {retries > 0 && ` · ${plural(retries, "retry", "retries")}`}
          {props.isCut && " · only the first 5,000 calls"}
        </div>
        <Tabs
          label="Trace"
          value={tab}
          choose={setTab}
          tabs={[
            { id: "timeline", label: "Timeline" },
            { id: "log", label: "Log" },
            { id: "bodies", label: "Input and result" },
          ]}
        />
      </header>
      {tab === "timeline" && (
        <>
          <div class="bar lined">
            {workers.map((worker) => (
              <span class="key" key={worker}>
                <i class={`k${colourOf(worker)}`} />
                {worker}
              </span>
            ))}
            <span class="key">
              <i class="ke" />
              failed
            </span>
            <span class="key">
              <i class="kl" />
              queued
            </span>
            <span class="right row hide">
              <span class="t3">Show</span>
              <Segmented
                label="Show"
                value={show}
                choose={setShow}
                choices={[
                  { id: "all", label: "All" },
                  { id: "failed", label: "Failed" },
                  { id: "slow", label: "Slow" },
                ]}
              />
            </span>
          </div>
          <Waterfall
            rows={rows}
            begin={begin}
            end={end}
            now={isRunning ? end : undefined}
            colourOf={colourOf}
            chosen={chosen}
            choose={select}
            toggle={toggle}
          />
          {selected && <SpanDetail span={selected} />}
        </>
      )}
      {tab === "log" && <SpanTable spans={spans} begin={begin} />}
      {tab === "bodies" && <SpanDetail span={root} />}
    </>
  );
}
