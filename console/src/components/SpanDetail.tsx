/** One call of a trace in detail, and all calls as a table, the accessible form of the timeline. */

import { to } from "../addresses";
import { fetchCall } from "../api/client";
import type { Span } from "../api/types";
import { LocalDocument } from "../data/document";
import { duration, preciseClock } from "../format";
import { toBase64Url, writeJson } from "../json/text";
import type { Json } from "../json/value";
import { go } from "../router";
import { history } from "../state/history";
import { workers } from "../state/live";
import { Button } from "./Button";
import { OutcomeText } from "./CallsTable";
import { useFetched } from "./Notice";
import { Tree } from "./Tree";
import { Rows } from "./VirtualList";

export function SpanDetail(props: { span: Span }) {
  const { span } = props;
  const { data } = useFetched(() => fetchCall(span.requestId), [span.requestId, span.outcome]);
  const past = history.value.find((call) => call.id === span.requestId);
  const whole = data?.requestId === span.requestId ? { ...span, ...data } : span;
  const failed = span.outcome === "failed";
  const input = past?.input ?? whole.input;
  const output = past?.problem?.details?.body ?? whole.output;
  const message = past?.problem?.detail ?? whole.message;
  const worker = workers.value?.find((each) => each.name === span.worker);
  return (
    <section class="det" aria-label="Chosen call">
      <div class="dcol">
        <div class="row mb">
          <b class="m w5">{span.hidden ? "not visible to you" : span.operationId}</b>
          {span.outcome && <span class={`chip ${failed ? "e" : "g"} m`}>{span.status ?? span.outcome}</span>}
          <span class="right row">
            {input !== undefined && span.operationId && (
              <Button
                look="x"
                onClick={() => go(`${to.operation(span.operationId as string)}#in=${toBase64Url(writeJson(input))}`)}
              >
                Re-run
              </Button>
            )}
            {!span.hidden && (
              <a class="btn x" href={to.call(span.requestId)}>
                Open call
              </a>
            )}
          </span>
        </div>
        <dl class="dl">
          {span.code && (
            <>
              <dt>Code</dt>
              <dd>
                <code class={failed ? "err" : ""}>{span.code}</code>
              </dd>
            </>
          )}
          {message && (
            <>
              <dt>Message</dt>
              <dd class="err">{message}</dd>
            </>
          )}
          {span.worker && (
            <>
              <dt>Worker</dt>
              <dd>
                {span.worker}{" "}
                {worker?.host && (
                  <span class="t3">
                    on {worker.host} pid {worker.pid}, {worker.transport}
                  </span>
                )}
              </dd>
            </>
          )}
          {span.startedAt === undefined && span.busySlots !== undefined && (
            <>
              <dt>Queued</dt>
              <dd>
                <BusySlots span={span} />
              </dd>
            </>
          )}
          {span.startedAt !== undefined && (
            <>
              <dt>Queued</dt>
              <dd>
                {duration(span.startedAt - span.queuedAt)} <BusySlots span={span} />
              </dd>
            </>
          )}
          {span.startedAt !== undefined && span.endedAt !== undefined && (
            <>
              <dt>Ran</dt>
              <dd>{duration(span.endedAt - span.startedAt)}</dd>
            </>
          )}
          {span.attempts.length > 1 && (
            <>
              <dt>Attempts</dt>
              <dd>{span.attempts.map((attempt) => attempt.status ?? attempt.code ?? "ok").join(", ")}</dd>
            </>
          )}
        </dl>
      </div>
      <Part title="Input" value={input} span={span} />
      <Part
        title={past?.problem?.details?.body !== undefined ? "Upstream body" : "Output"}
        value={output}
        span={span}
      />
    </section>
  );
}

/** Why a call waits or waited. */
function BusySlots(props: { span: Span }) {
  const { busySlots, worker, endedAt, startedAt } = props.span;
  if (busySlots === undefined) return null;
  const slots = busySlots === 1 ? "the slot" : `all ${busySlots} slots`;
  const verb = busySlots === 1 ? "is" : "are";
  const past = busySlots === 1 ? "was" : "were";
  return (
    <span class="warn">
      {slots} of {worker} {startedAt === undefined && endedAt === undefined ? verb : past} busy
    </span>
  );
}

function Part(props: { title: string; value: Json | undefined; span: Span }) {
  const { value } = props;
  return (
    <div class="dcol">
      <h2 class="mb">{props.title}</h2>
      {value === undefined ? (
        <p class="t3">{props.span.kind === "routed" ? "not read by the hub" : "not stored"}</p>
      ) : typeof value === "object" && value !== null ? (
        <Tree document={new LocalDocument(value)} label={props.title} />
      ) : (
        <pre class="plain">{writeJson(value)}</pre>
      )}
    </div>
  );
}

export function SpanTable(props: { spans: Span[]; begin: number }) {
  const sorted = [...props.spans].sort((left, right) => left.queuedAt - right.queuedAt);
  return (
    <div class="virtual">
      <table>
        <thead>
          <tr>
            <th>Started</th>
            <th class="num">After</th>
            <th>Call</th>
            <th>Worker</th>
            <th>Outcome</th>
            <th class="num">Duration</th>
          </tr>
        </thead>
        <Rows
          count={sorted.length}
          row={(index) => {
            const span = sorted[index] as Span;
            return (
              <tr key={span.requestId} class={span.outcome === "failed" ? "bad" : ""}>
                <td class="n">{preciseClock(span.queuedAt)}</td>
                <td class="num">{duration(span.queuedAt - props.begin)}</td>
                <td>
                  {span.hidden ? (
                    "not visible to you"
                  ) : (
                    <a class="m" href={to.call(span.requestId)}>
                      {span.operationId}
                    </a>
                  )}{" "}
                  <span class="t3">{span.label}</span>
                </td>
                <td class="t2">{span.worker}</td>
                <td>
                  <OutcomeText span={span} />
                </td>
                <td class="num">{span.endedAt ? duration(span.endedAt - span.queuedAt) : ""}</td>
              </tr>
            );
          }}
        />
      </table>
    </div>
  );
}
