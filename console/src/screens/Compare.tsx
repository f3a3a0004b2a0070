/** Two calls beside each other: input, data and meta as one tree of differences. */

import { useEffect, useState } from "preact/hooks";
import { to } from "../addresses";
import { Segmented } from "../components/Choices";
import { Empty } from "../components/Notice";
import { type DiffLine, diff } from "../data/diff";
import { duration, moment } from "../format";
import { parseJson, writeJson } from "../json/text";
import { isObject, type Json, pathText, shortText } from "../json/value";
import { route } from "../router";
import { history, type PastCall } from "../state/history";

export function Compare() {
  const [one = "", other = ""] = route.value.rest.split("/");
  const [shows, setShows] = useState<"differences" | "all">("differences");
  const left = history.value.find((call) => call.id === one);
  const right = history.value.find((call) => call.id === other);
  useEffect(() => {
    document.title = "Compare – operations";
  }, []);
  if (!left || !right) return <Empty>Both calls must be in this browser's history.</Empty>;
  const lines = diff(whole(left), whole(right));
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
            <h1>{changes === 0 ? "No differences" : changes === 1 ? "1 difference" : `${changes} differences`}</h1>
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

function CallTitle(props: { call: PastCall }) {
  const { call } = props;
  return (
    <a href={to.call(call.id)}>
      <b>{call.operationId}</b> {moment(call.at)} <span class={call.outcome === "ok" ? "ok" : "err"}>{call.label}</span>{" "}
      {duration(call.durationMs)}
    </a>
  );
}

function whole(call: PastCall): Json {
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
