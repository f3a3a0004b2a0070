/** One event of a stream: as a line, and in full. */

import { LocalDocument } from "../data/document";
import { plural, preciseClock } from "../format";
import type { Json } from "../json/value";
import type { StreamEvent } from "../state/ring";
import { readEvent } from "../state/streams";
import { Button, CopyButton } from "./Button";
import { Tree } from "./Tree";

export function EventRow(props: { event: StreamEvent; isChosen: boolean; choose: () => void }) {
  const { event } = props;
  const isRed = event.failure !== undefined || event.missing !== undefined;
  const look = isRed ? "e" : event.warning ? "w" : "";
  return (
    <button type="button" tabIndex={-1} class={`ev ${look} ${props.isChosen ? "on" : ""}`} onClick={props.choose}>
      <span class="p">{preciseClock(event.at)}</span>
      <span class="p num">{event.failure === undefined ? event.seq : ""}</span>
      <span class="t2">{event.type}</span>
      <span>{event.failure ?? <Inline value={readEvent(event).data} />}</span>
      <span class={isRed ? "err" : "warn"}>
        {event.missing === undefined ? event.warning : `${plural(event.missing, "event")} missing before this one`}
      </span>
    </button>
  );
}

const MOST = 8;

/** A value in one line, with its colours. */
export function Inline(props: { value: unknown; depth?: number }) {
  const { value, depth = 0 } = props;
  if (typeof value === "string") return <span class="v-s">{JSON.stringify(value.slice(0, 200))}</span>;
  if (typeof value === "number") return <span class="v-d">{value}</span>;
  if (value === null || value === undefined || typeof value === "boolean")
    return <span class="v-l">{String(value)}</span>;
  const isList = Array.isArray(value);
  const members = Object.entries(value);
  if (depth > 1) return <span class="p">{isList ? `[${members.length}]` : `{${members.length}}`}</span>;
  return (
    <>
      <span class="p">{isList ? "[" : "{"}</span>
      {members.slice(0, MOST).map(([name, member], index) => (
        <span key={name}>
          {index > 0 && <span class="p">, </span>}
          {!isList && (
            <>
              <span class="k">{name}</span>
              <span class="p">: </span>
            </>
          )}
          <Inline value={member} depth={depth + 1} />
        </span>
      ))}
      {members.length > MOST && <span class="p">, …</span>}
      <span class="p">{isList ? "]" : "}"}</span>
    </>
  );
}

export function EventDetail(props: { event: StreamEvent; before: StreamEvent | undefined; close: () => void }) {
  const { event, before } = props;
  const { data, meta } = readEvent(event);
  const named = meta.event as { type?: string; id?: string } | undefined;
  const status = meta.statusCode === undefined ? "" : ` ${String(meta.statusCode)}`;
  const rows: [string, string][] = [
    ["source", `${String(meta.source ?? "")}${status}`],
    ["event.type", named?.type ?? event.type],
    ["event.id", named?.id ?? event.id],
    ["contentType", String(meta.contentType ?? "")],
    ["received", preciseClock(event.at)],
    ["gap", before ? `${event.at - before.at} ms` : ""],
  ];
  const isBranch = typeof data === "object" && data !== null;
  return (
    <section class="pane" aria-label={`Event ${event.seq}`}>
      <div class="bar">
        <h2>Event {event.seq}</h2>
        <span class="right row">
          <CopyButton look="x" label="Copy" text={() => event.text} />
          <Button look="x" icon="close" label="Close" onClick={props.close} />
        </span>
      </div>
      <div class="body col">
        {isBranch ? <Tree document={new LocalDocument(data as Json)} label="Event" /> : <Inline value={data} />}
        {event.warning && <p class="warn">{event.warning}</p>}
        <div>
          <h2 class="mb">Meta</h2>
          <dl class="dl">
            {rows
              .filter(([, value]) => value)
              .map(([name, value]) => [
                <dt key={name}>{name}</dt>,
                <dd key={`${name} value`}>
                  <code>{value}</code>
                </dd>,
              ])}
          </dl>
        </div>
      </div>
    </section>
  );
}
