/** Two calls beside each other: input, data and meta as one tree of differences. */

import { useEffect, useState } from "preact/hooks";
import { to } from "../addresses";
import { fetchCall } from "../api/client";
import type { Span } from "../api/types";
import { Segmented } from "../components/Choices";
import { Empty, Failed, Loading, useFetched } from "../components/Notice";
import { type DiffLine, diff } from "../data/diff";
import { duration, moment, plural } from "../format";
import { parseJson, writeJson } from "../json/text";
import { isObject, type Json, type JsonObject, pathText, shortText } from "../json/value";
import { route } from "../router";
import { history, type PastCall } from "../state/history";
import { can } from "../state/session";

interface Compared {
  id: string;
  operationId: string;
  at: number;
  durationMs: number;
  label: string;
  isOk: boolean;
  whole: Json;
}

/** A call of this browser's history, else the server's record of it. */
async function find(id: string): Promise<Compared | undefined> {
  const past = history.peek().find((call) => call.id === id);
  if (past) return { ...past, isOk: past.outcome === "ok", whole: wholeOf(past) };
  const span = can("calls") ? await fetchCall(id) : null;
  return span ? recorded(span) : undefined;
}

function recorded(span: Span): Compared {
  const { requestId, operationId = "not visible to you", queuedAt, endedAt = queuedAt, outcome = "running" } = span;
  const { code, status, worker, message } = span;
  const facts = Object.entries({ outcome, code, status, worker, message }).filter(([, value]) => value !== undefined);
  const kept = Object.entries({ input: span.input, data: span.output }).filter(([, value]) => value !== undefined);
  return {
    id: requestId,
    operationId,
    at: queuedAt,
    durationMs: endedAt - queuedAt,
    label: code ?? outcome,
    isOk: outcome === "ok",
    whole: { ...Object.fromEntries(kept), meta: Object.fromEntries(facts) } as JsonObject,
  };
}

export function Compare() {
  const [one = "", other = ""] = route.value.rest.split("/");
  const [shows, setShows] = useState<"differences" | "all">("differences");
  const { data, problem, again } = useFetched(
    () => Promise.all([find(one), find(other)]),
    [one, other, history.value, can("calls")],
  );
  useEffect(() => {
    document.title = "Compare – operations";
  }, []);
  if (problem) return <Failed problem={problem} retry={again} />;
  if (!data) return <Loading />;
  const [left, right] = data;
  if (!left || !right) return <Empty>A call is unknown, or not visible to you. Only recent calls are stored.</Empty>;
  const lines = diff(left.whole, right.whole);
  const shown = lines.filter((line) => shows === "all" || line.kind !== "same");
  const changes = lines.filter((line) => line.kind !== "same").length;
  return (
    <>
      <header class="head flat">
        <div class="row">
          <div class="grow">
            <div class="crumb">
              <a href={to.calls()}>Calls</a> › Compare
            </div>
            <h1>{changes === 0 ? "No differences" : plural(changes, "difference")}</h1>
          </div>
          <Segmented
            label="Show"
            value={shows}
            choose={setShows}
            choices={[
              { id: "differences", label: "Differences" },
              { id: "all", label: "All" },
            ]}
          />
        </div>
      </header>
      <div class="virtual diff" tabIndex={0} role="region" aria-label="Differences">
        <div class="line t3">
          <span>Path</span>
          <CallTitle call={left} />
          <CallTitle call={right} />
        </div>
        {shown.map((line) => (
          <Line key={JSON.stringify(line.path)} line={line} />
        ))}
      </div>
    </>
  );
}

function CallTitle(props: { call: Compared }) {
  const { call } = props;
  return (
    <a href={to.call(call.id)}>
      <b>{call.operationId}</b> {moment(call.at)} <span class={call.isOk ? "ok" : "err"}>{call.label}</span>{" "}
      {duration(call.durationMs)}
    </a>
  );
}

function wholeOf(call: PastCall): Json {
  const answer: Json = call.problem ? { error: JSON.parse(writeJson(call.problem)) as Json } : bodyOf(call);
  return { input: call.input, ...(isObject(answer) ? answer : { data: answer }) };
}

function bodyOf(call: PastCall): Json {
  if (call.body === undefined) return {};
  const read = parseJson(call.body);
  return isObject(read) && "meta" in read ? { data: read.data ?? null, meta: read.meta ?? null } : { data: read };
}

const WORDS = { same: "", changed: "changed", added: "only right", removed: "only left" };

function Line(props: { line: DiffLine }) {
  const { line } = props;
  return (
    <div class={`line ${line.kind}`}>
      <span>
        {pathText(line.path, "").replace(/^\./, "") || "(all)"} <span class="t3">{WORDS[line.kind]}</span>
      </span>
      <span class="v-s">{line.left === undefined ? "" : shortText(line.left)}</span>
      <span class="v-s">{line.right === undefined ? "" : line.kind === "same" ? "equal" : shortText(line.right)}</span>
    </div>
  );
}
