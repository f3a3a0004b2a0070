/** A stream that this page follows: events newest first, a chart of their numbers, pause, filter. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { to } from "../addresses";
import { opsCode } from "../code";
import { Button } from "../components/Button";
import { Tabs } from "../components/Choices";
import { ErrorCard } from "../components/ErrorCard";
import { shownSource } from "../components/Frame";
import { Icon } from "../components/Icon";
import { plainText } from "../components/Markdown";
import { NumberChart, numericFields } from "../components/NumberChart";
import { MetaList } from "../components/Result";
import { EventDetail, EventRow } from "../components/StreamLog";
import { TypeChip } from "../components/TypeChip";
import { VirtualList } from "../components/VirtualList";
import { count, plural } from "../format";
import { writeJson } from "../json/text";
import { useShortcuts } from "../keyboard";
import { MOST_EVENTS, readFilter, type StreamEvent } from "../state/ring";
import { dataOf, readEvent, type StreamState } from "../state/streams";

type Tab = "events" | "chart" | "meta" | "raw";

export function Stream(props: { stream: StreamState }) {
  const { stream } = props;
  const [tab, setTab] = useState<Tab>("events");
  const { operation } = stream;
  const isLive = stream.state.value === "live" || stream.state.value === "resuming";
  useEffect(() => {
    shownSource.value = operation.source;
    document.title = `${stream.state.value === "failed" ? "✗ " : ""}${operation.id} – operations`;
    return () => {
      shownSource.value = "";
    };
  }, [stream.state.value]);
  useShortcuts(
    {
      pause: () => stream.pause(),
      cancel: () => stream.stop(),
      digit: (digit) => setTab((["events", "chart", "meta", "raw"] as const)[digit - 1] ?? "events"),
    },
    [stream],
  );
  const words = opsCode(operation, stream.input).split(" ").slice(3);
  return (
    <>
      <header class="head about">
        <div class="row">
          <div class="grow">
            <div class="crumb hide">
              <a href={to.operations({ source: operation.source })}>{operation.source}</a>
            </div>
            <div class="row wrap">
              <h1 class="m">{operation.id}</h1>
              <div class="chips">
                <TypeChip type={operation.type} />
                {typeof operation.annotations?.method === "string" && (
                  <span class="chip m">
                    {operation.annotations.method} {String(operation.annotations.path ?? "")}
                  </span>
                )}
              </div>
            </div>
          </div>
          <div class="row">
            <Button
              icon={stream.paused.value ? "play" : "pause"}
              aria-pressed={stream.paused.value}
              onClick={() => stream.pause()}
            >
              {stream.paused.value ? "Resume" : "Pause"}
              <kbd class="hide">Space</kbd>
            </Button>
            <Button look="d" icon="stop" disabled={!isLive} onClick={() => stream.stop()}>
              Stop
            </Button>
          </div>
        </div>
        <div class="sub">
          {plainText(operation.description ?? "").split("\n")[0]}{" "}
          {words.length > 0 && (
            <>
              Input:{" "}
              {words.map((word, index) => (
                <code key={index}>{word} </code>
              ))}
            </>
          )}
          <a class="acc" href={to.operation(operation.id)}>
            Edit
          </a>
        </div>
        <Tabs
          label="Stream"
          value={tab}
          choose={setTab}
          tabs={[
            { id: "events", label: "Events" },
            { id: "chart", label: "Chart" },
            { id: "meta", label: "Meta" },
            { id: "raw", label: "Raw" },
          ]}
        />
      </header>
      {tab === "events" && <Events stream={stream} />}
      {tab === "chart" && <Charts stream={stream} />}
      {tab === "meta" && <StreamMeta stream={stream} />}
      {tab === "raw" && <RawEvents stream={stream} />}
    </>
  );
}

const STATES = {
  connecting: "Connecting",
  live: "Live",
  resuming: "Connection lost, resuming",
  ended: "Ended",
  failed: "Failed",
  stopped: "Stopped",
};
const DOTS = { connecting: "o", live: "a", resuming: "e", ended: "", failed: "e", stopped: "o" };

function Counts(props: { stream: StreamState; children?: preact.ComponentChildren }) {
  const { stream } = props;
  void stream.version.value;
  const state = stream.state.value;
  const waiting = stream.frozen ? stream.ring.received - stream.frozen.received : 0;
  return (
    <div class="bar lined">
      <span class="row">
        <span class={`dot ${DOTS[state]}`} />
        <b class={state === "failed" || state === "resuming" ? "err" : ""}>
          {stream.paused.value ? "Paused" : STATES[state]}
        </b>
        {waiting > 0 && <span class="chip a">{count(waiting)} new</span>}
      </span>
      {state === "live" && <span class="t2 n hide">{stream.rate.value.toFixed(1)} events/s</span>}
      <span class="t2 n" data-testid="received">
        {count(stream.received)} received
      </span>
      {stream.ring.received > MOST_EVENTS && <span class="t3 n hide">last {count(stream.ring.size)} kept</span>}
      <span class={`n hide ${stream.gaps ? "err" : "t3"}`}>{plural(stream.gaps, "gap")}</span>
      {stream.resumed > 0 && <span class="t3 n hide">resumed {plural(stream.resumed, "time")}</span>}
      {stream.warnings > 0 && <span class="warn n">{plural(stream.warnings, "warning")}</span>}
      {stream.failures > 0 && <span class="err n">{plural(stream.failures, "failure")}</span>}
      {props.children}
    </div>
  );
}

/** Time in which one update searches for matching events; the next update continues. */
const SCAN_MS = 8;

/** The events that are shown, newest first: all of them without a filter. */
function useShown(
  stream: StreamState,
  filter: string,
): { count: number; at: (index: number) => StreamEvent | undefined } {
  const matches = useMemo(() => readFilter(filter), [filter]);
  const [turn, setTurn] = useState(0);
  const version = stream.version.value;
  const paused = stream.frozen;
  const scan = useMemo(() => ({ next: 0, found: [] as StreamEvent[] }), [stream, matches, paused]);
  const last = paused?.received ?? stream.ring.received;
  const shown = useMemo(() => {
    const kept = paused?.ring;
    if (!matches) return { count: kept?.length ?? stream.ring.size, at: (index: number) => at(stream, index) };
    const oldest = last - (kept?.length ?? stream.ring.size) + 1;
    scan.next = Math.max(scan.next, oldest);
    const until = performance.now() + SCAN_MS;
    while (scan.next <= last && performance.now() < until) {
      const event = at(stream, last - scan.next++);
      if (event && matches(dataOf(event), event.text)) scan.found.push(event);
    }
    const dropped = scan.found.findIndex((event) => event.seq >= oldest);
    if (dropped !== 0) scan.found.splice(0, dropped < 0 ? scan.found.length : dropped);
    const { found } = scan;
    return { count: found.length, at: (index: number) => found[found.length - 1 - index] };
  }, [stream, version, turn, scan]);
  const isBehind = matches !== undefined && scan.next <= last;
  useEffect(() => {
    if (!isBehind) return;
    const timer = setTimeout(() => setTurn((count) => count + 1));
    return () => clearTimeout(timer);
  });
  return shown;
}

/** The event at this offset from the newest shown event. */
function at(stream: StreamState, index: number): StreamEvent | undefined {
  return stream.frozen ? stream.frozen.ring[index] : stream.ring.at(index);
}

function Events(props: { stream: StreamState }) {
  const { stream } = props;
  const [filter, setFilter] = useState("");
  const [chosen, setChosen] = useState<StreamEvent | undefined>();
  const shown = useShown(stream, filter);
  const fields = numericFields(stream);
  const keys = (event: KeyboardEvent) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (event.key === "Escape") setChosen(undefined);
    if (!step || !chosen) return;
    for (let index = 0; index < shown.count; index++) {
      if (shown.at(index)?.seq !== chosen.seq) continue;
      setChosen(shown.at(index + step) ?? chosen);
      break;
    }
    event.preventDefault();
  };
  return (
    <>
      <Counts stream={stream}>
        <span class="in small right">
          <Icon name="filter" small />
          <input
            type="text"
            aria-label="Filter events"
            placeholder="Filter: text or celsius >= 14"
            value={filter}
            onInput={(event) => setFilter(event.currentTarget.value)}
            onKeyDown={(event) => event.key === "Escape" && setFilter("")}
          />
        </span>
      </Counts>
      <div class={`split stream ${chosen ? "" : "alone"}`}>
        <section class="pane" aria-label="Events">
          {fields[0] && <NumberChart stream={stream} field={fields[0]} />}
          {stream.problem && (
            <div class="chartbox">
              <ErrorCard problem={stream.problem} />
            </div>
          )}
          <div class="ev hd" aria-hidden="true">
            <span>Time</span>
            <span class="num">Seq</span>
            <span>Event</span>
            <span>Data</span>
            <span />
          </div>
          {shown.count === 0 ? (
            <p class="empty">{filter ? "No stored events match the filter." : "Waiting for the first event."}</p>
          ) : (
            <VirtualList
              role="log"
              aria-live="off"
              aria-label="Events, newest first"
              tabIndex={0}
              onKeyDown={keys}
              count={shown.count}
              height={26}
              row={(index) => {
                const event = shown.at(index);
                return (
                  event && (
                    <EventRow
                      key={event.seq}
                      event={event}
                      isChosen={event.seq === chosen?.seq}
                      choose={() => setChosen(event)}
                    />
                  )
                );
              }}
            />
          )}
        </section>
        {chosen && (
          <EventDetail event={chosen} before={stream.ring.bySeq(chosen.seq - 1)} close={() => setChosen(undefined)} />
        )}
      </div>
    </>
  );
}

function Charts(props: { stream: StreamState }) {
  const fields = numericFields(props.stream);
  return (
    <>
      <Counts stream={props.stream} />
      <div class="body">
        {fields.length === 0 && <p class="empty">The events have no numeric fields.</p>}
        {fields.map((field) => (
          <NumberChart key={field} stream={props.stream} field={field} isLarge />
        ))}
      </div>
    </>
  );
}

function StreamMeta(props: { stream: StreamState }) {
  const { stream } = props;
  const newest = stream.ring.at(0);
  const meta = newest ? readEvent(newest).meta : {};
  return (
    <div class="body col pt">
      <MetaList
        meta={{
          requestId: stream.requestId.value,
          traceId: stream.traceId,
          state: stream.state.value,
          received: stream.received,
          input: stream.input,
        }}
      />
      <h2>Newest event</h2>
      <MetaList meta={meta} />
    </div>
  );
}

const MOST_RAW = 256 << 10;

function RawEvents(props: { stream: StreamState }) {
  const { stream } = props;
  void stream.version.value;
  const texts = [];
  let length = 0;
  for (let index = 0; index < Math.min(100, stream.ring.size) && length < MOST_RAW; index++) {
    const text = at(stream, index)?.text ?? "";
    texts.push(text.slice(0, MOST_RAW));
    length += text.length;
  }
  return (
    <div class="body pt">
      <pre class="raw">{texts.join("\n") || writeJson([])}</pre>
    </div>
  );
}
