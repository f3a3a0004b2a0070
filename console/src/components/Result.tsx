/** The result of a call: data, meta, the raw body, and differences from the declared schema. */

import { useSignal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import type { Difference } from "../api/types";
import { type DataDocument, LARGEST } from "../data/document";
import { plural, size } from "../format";
import { isObject, type Json, type JsonObject, type Path, pathText } from "../json/value";
import { useShortcuts } from "../keyboard";
import type { Run } from "../state/runs";
import { Blocks } from "./Blocks";
import { Button, CopyButton, download } from "./Button";
import { type Choice, Segmented, Tabs } from "./Choices";
import { DataPane } from "./DataPane";
import { Empty, Notice } from "./Notice";
import { ResultError } from "./ResultError";
import { isBranch } from "./Tree";

type Tab = "data" | "meta" | "raw" | "declared";

export function Result(props: { run: Run }) {
  const { run } = props;
  const [tab, setTab] = useState<Tab>("data");
  const [view, setView] = useState<"tree" | "table">("tree");
  const [finding, setFinding] = useState(false);
  const path = useSignal<Path>([]);
  const words = useSignal("");
  const { document: data } = run;
  const table = data?.summary.table;
  const all = run.differences ?? [];
  const found = all.filter(({ action }) => action !== "stripped" && action !== "default");
  const stripped = all.filter(({ action }) => action === "stripped").length;
  useEffect(() => {
    setTab("data");
    setFinding(false);
    words.value = "";
    setView(table && table.length === 0 ? "table" : "tree");
    path.value = [];
  }, [run.id, run.state]);
  const tabs: Choice<Tab>[] = run.problem
    ? [
        { id: "data", label: "Error" },
        ...(run.problem.details?.body !== undefined ? [{ id: "meta" as const, label: "Upstream response" }] : []),
        { id: "raw", label: "Raw" },
      ]
    : [
        { id: "data", label: "Data" },
        { id: "meta", label: "Meta" },
        { id: "raw", label: "Raw" },
        { id: "declared", label: "Declared / got", count: found.length || undefined, look: "warn" },
      ];
  useShortcuts({ digit: (digit) => tabs[digit - 1] && setTab((tabs[digit - 1] as Choice<Tab>).id) }, [
    run.id,
    run.state,
    found.length,
  ]);
  if (run.state === "running") return <div class="body" aria-busy="true" />;
  const hasData = tab === "data" && !run.problem && data && data.summary.root.kind !== "bytes";
  const hasView = hasData && isBranch(data.summary.root);
  return (
    <>
      <div class="bar rt">
        <Tabs label="Result" class="t0" tabs={tabs} value={tab} choose={setTab} />
        {hasData && (
          <span class="right row">
            {hasView && table && (
              <Segmented
                label="View"
                choices={[
                  { id: "tree", label: "Tree" },
                  { id: "table", label: "Table" },
                ]}
                value={view}
                choose={setView}
              />
            )}
            {hasView && (
              <Button
                look="x"
                class="hide"
                icon="search"
                label="Find in result"
                aria-pressed={finding}
                onClick={() => setFinding(!finding)}
              />
            )}
            <CopyButton look="x" label="Copy" text={() => copied(data)} />
            <Button
              look="x"
              class="hide"
              icon="download"
              label="Download"
              onClick={() =>
                void data.file([], 2).then((file) => download(`${run.operation.id.replaceAll("/", "-")}.json`, file))
              }
            />
          </span>
        )}
      </div>
      <div class="body col" role="tabpanel" aria-label={tab}>
        {tab === "data" && run.problem && <ResultError run={run} problem={run.problem} />}
        {tab === "data" && !run.problem && (
          <>
            {run.meta?.isError === true && <Notice look="e">The tool reported an error.</Notice>}
            {found.length > 0 && <DifferenceNotice found={found} />}
            {data ? (
              <DataPane
                document={data}
                blocks={blocksOf(run.meta)}
                name={run.operation.id}
                view={view}
                path={path}
                words={words}
                finding={finding}
                find={() => setFinding(true)}
              />
            ) : (
              <TooLarge run={run} />
            )}
          </>
        )}
        {tab === "meta" && (run.problem ? <UpstreamAnswer run={run} /> : <Meta run={run} />)}
        {tab === "raw" && <Raw run={run} />}
        {tab === "declared" && <DifferenceTable found={all} policy={run.operation.outputPolicy} />}
      </div>
      {hasView && (
        <div class="bar path hide">
          <code>{pathText(path.value)}</code>
          <span class="right">
            {plural(data.summary.keys, "key")}
            {stripped > 0 && ` · ${plural(stripped, "undeclared key")} stripped`}
          </span>
        </div>
      )}
    </>
  );
}

/** The data as text to copy: a string is copied without quotes. */
function copied(data: DataDocument): Promise<string> {
  const { kind, size } = data.summary.root;
  return kind === "string" ? data.start([], size) : data.text([], 2);
}

function blocksOf(meta: JsonObject | undefined): Json[] {
  return Array.isArray(meta?.content) ? meta.content : [];
}

const DONE = {
  cast: "cast",
  stripped: "stripped: not declared",
  default: "filled with the default",
  kept: "kept as it is",
  replaced: "replaced",
};

function DifferenceNotice(props: { found: Difference[] }) {
  const { found } = props;
  const [first] = found;
  if (!first) return null;
  const actions = [...new Set(found.map(({ action }) => action))].join(" or ");
  return (
    <Notice>
      {found.length === 1 ? "1 value differs" : `${found.length} values differ`} from the declared schema and{" "}
      {found.length === 1 ? "was" : "were"} {actions}: <code>{first.pointer || "data"}</code>{" "}
      {first.declared && first.got !== undefined && !/^(object|array) of/.test(first.got) ? (
        <>
          declared {first.declared}, got <code>{first.got}</code>
        </>
      ) : (
        first.detail
      )}
      {found.length > 1 && `, and ${found.length - 1} more`}.
    </Notice>
  );
}

function DifferenceTable(props: { found: Difference[]; policy?: string | undefined }) {
  if (props.policy === "off") return <Empty>This operation returns data unchanged: its output policy is “off”.</Empty>;
  if (props.found.length === 0) return <Empty>The data matches the declared schema.</Empty>;
  return (
    <div class="tablewrap">
      <table>
        <thead>
          <tr>
            <th>Path</th>
            <th>Declared</th>
            <th>Got</th>
            <th>Action</th>
          </tr>
        </thead>
        <tbody>
          {props.found.map((each) => (
            <tr key={each.pointer + each.action}>
              <td>
                <code>{each.pointer || "(data)"}</code>
              </td>
              <td>{each.declared ?? "–"}</td>
              <td>{each.got === undefined ? "nothing" : <code>{each.got}</code>}</td>
              <td class={each.action === "kept" || each.action === "replaced" ? "warn" : ""}>
                {DONE[each.action]}
                {each.became !== undefined && (
                  <>
                    : <code>{each.became}</code>
                  </>
                )}
                {each.detail && ` (${each.detail})`}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function TooLarge(props: { run: Run }) {
  const { run } = props;
  if (!run.body) return <Empty>The body of this call is not stored.</Empty>;
  return (
    <div class="empty">
      <p>
        The result has {size(run.bytes ?? 0)}; up to {size(LARGEST)} are shown here.
      </p>
      <Button
        icon="download"
        onClick={() => run.body && download(`${run.operation.id.replaceAll("/", "-")}.json`, run.body)}
      >
        Download
      </Button>
    </div>
  );
}

const LONGEST = 2_048;

function shorten(text = ""): string {
  return text.length > LONGEST ? `${text.slice(0, LONGEST)}… ${plural(text.length, "character")}` : text;
}

export function MetaList(props: { meta: Record<string, unknown> }) {
  return (
    <dl class="dl wide">
      {Object.entries(props.meta).map(([name, value]) => [
        <dt key={name}>{name}</dt>,
        <dd key={`${name} value`}>
          <code>{shorten(typeof value === "string" ? value : JSON.stringify(value))}</code>
        </dd>,
      ])}
    </dl>
  );
}

function Meta(props: { run: Run }) {
  const { run } = props;
  const { headers, content: _, ...rest } = run.meta ?? {};
  const blocks = blocksOf(run.meta);
  const timing = {
    requestId: run.requestId,
    traceId: run.traceId,
    durationMs: Math.round(run.durationMs ?? 0),
    bytes: run.bytes,
  };
  return (
    <>
      <section>
        <h2 class="mb">Meta</h2>
        <MetaList meta={{ ...rest, ...timing }} />
      </section>
      {isObject(headers) && (
        <section>
          <h2 class="mb">Headers</h2>
          <MetaList meta={headers} />
        </section>
      )}
      {blocks.length > 0 && (
        <section>
          <h2 class="mb">Blocks</h2>
          <Blocks blocks={blocks} />
        </section>
      )}
    </>
  );
}

function UpstreamAnswer(props: { run: Run }) {
  const { body: _, ...rest } = props.run.problem?.details ?? {};
  return <MetaList meta={rest} />;
}

const SHOWN = 256 << 10;

function Raw(props: { run: Run }) {
  const [text, setText] = useState("");
  const { body } = props.run;
  useEffect(() => {
    setText("");
    void body?.slice(0, SHOWN).text().then(setText);
  }, [body]);
  if (!body) return <Empty>No response.</Empty>;
  return (
    <>
      <div class="row">
        <span class="t3">{body.type}</span>
        <span class="t3 n">{size(body.size)}</span>
        <Button class="right" icon="download" onClick={() => download("body", body)}>
          Download
        </Button>
      </div>
      <pre class="raw">{text}</pre>
      {body.size > SHOWN && <p class="t3">{size(body.size - SHOWN)} more</p>}
    </>
  );
}
