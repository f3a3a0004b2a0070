/** Data by kind: tree or table, plain text, bytes. */

import type { Signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import type { DataDocument } from "../data/document";
import { LocalDocument } from "../data/document";
import { isObject, type Json, type JsonObject, type Path } from "../json/value";
import { Blocks, BytesView, LongText, SHOWN } from "./Blocks";
import { Button } from "./Button";
import { DataTable } from "./DataTable";
import { localTime, Tree } from "./Tree";

interface DataPaneProps {
  document: DataDocument;
  /** The content blocks of an MCP result. */
  blocks: Json[];
  name: string;
  view: "tree" | "table";
  path: Signal<Path>;
  /** The words to search for. */
  words: Signal<string>;
  finding: boolean;
  /** Open the search. */
  find: () => void;
}

/**
 * The data of a result. For an MCP result, the content blocks replace data that is only text. Below other data they are
 * shown if they contain more than text, or if the tool reported an error.
 */
export function DataPane(props: DataPaneProps) {
  const { blocks } = props;
  const { root, meta } = props.document.summary;
  const isText = root.kind === "string" || root.kind === "null";
  if (blocks.length === 0) return <Data {...props} />;
  if (isText) return <Blocks blocks={blocks} />;
  const adds = meta?.isError === true || blocks.some((block) => isObject(block) && block.type !== "text");
  return (
    <>
      <Data {...props} />
      {adds && <Blocks blocks={blocks} />}
    </>
  );
}

function Data(props: DataPaneProps) {
  const { document: data } = props;
  const { root, table } = data.summary;
  const words = props.words.value;
  const [hits, setHits] = useState<Path[] | undefined>();
  const [hit, setHit] = useState(0);
  useEffect(() => {
    if (!words || !props.finding) return setHits(undefined);
    let isCurrent = true;
    void data.find(words).then((found) => {
      if (!isCurrent) return;
      setHits(found);
      setHit(0);
    });
    return () => {
      isCurrent = false;
    };
  }, [words, props.finding, data]);
  if (root.kind === "bytes") return <BytesView load={() => data.bytes([])} of={data} name={props.name} />;
  if (root.kind !== "object" && root.kind !== "array") return <Plain document={data} />;
  if (root.size === 0)
    return <p class="plain t3">{root.kind === "array" ? "[ ] an empty list" : "{ } an empty object"}</p>;
  const next = (step: number) => hits?.length && setHit((hit + step + hits.length) % hits.length);
  return (
    <div>
      {props.finding && (
        <div class="findbar">
          <input
            class="in"
            aria-label="Find in result"
            placeholder="Find a key or value"
            value={words}
            autofocus
            onInput={(event) => (props.words.value = event.currentTarget.value)}
            onKeyDown={(event) => event.key === "Enter" && !event.ctrlKey && next(event.shiftKey ? -1 : 1)}
          />
          <span class="t3 n">{hits ? (hits.length > 0 ? `${hit + 1} of ${hits.length}` : "none") : ""}</span>
          <Button look="x" icon="up" label="Previous hit" onClick={() => next(-1)} />
          <Button look="x" icon="down" label="Next hit" onClick={() => next(1)} />
        </div>
      )}
      {props.view === "table" && table ? (
        <>
          {table.length > 0 && <Around document={data} table={table} />}
          <DataTable document={data} path={table} name={props.name} />
        </>
      ) : (
        <Tree
          document={data}
          hits={hits}
          hit={hit}
          select={(path) => (props.path.value = path)}
          filter={(path) => {
            props.words.value = String(path.at(-1));
            props.find();
          }}
        />
      )}
    </div>
  );
}

/** The other properties beside a table. */
function Around(props: { document: DataDocument; table: Path }) {
  const [rest, setRest] = useState<LocalDocument | undefined>();
  const { value } = props.document;
  useEffect(() => {
    if (!isObject(value)) return setRest(undefined);
    const others = Object.entries(value).filter(([name]) => name !== props.table[0]);
    setRest(others.length > 0 ? new LocalDocument(Object.fromEntries(others)) : undefined);
  }, [value]);
  return rest ? <Tree document={rest} label="Other properties" /> : null;
}

const WITHOUT_BODY = new Set([204, 205, 304]);

function hasNoBody(meta: JsonObject | undefined): boolean {
  return meta?.source === "http" && WITHOUT_BODY.has(Number(meta.statusCode));
}

/** A single value: text, `""`, null and nothing look different. */
function Plain(props: { document: DataDocument }) {
  const { document: data } = props;
  const { kind, size, text: short = "" } = data.summary.root;
  const [text, setText] = useState(short);
  useEffect(() => {
    setText(short);
    if (size > short.length) void data.start([], SHOWN).then(setText);
  }, [data]);
  if (kind === "null" && hasNoBody(data.summary.meta)) return <p class="plain t3">no data: the response has no body</p>;
  if (kind === "null") return <p class="plain v-l">null</p>;
  if (kind !== "string") return <p class={`plain ${kind === "boolean" ? "v-l" : "v-d"}`}>{short}</p>;
  return size === 0 ? (
    <p class="plain t3">"" an empty string</p>
  ) : (
    <LongText text={text} size={size} title={localTime(text)} />
  );
}
