/** The operations: search as you type, filters, and a preview of the selected one. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { to } from "../addresses";
import { api } from "../api/client";
import type { CatalogueEntry } from "../api/types";
import { shellWord } from "../code";
import { Icon } from "../components/Icon";
import { Menu } from "../components/Menu";
import { Empty, Failed, Loading } from "../components/Notice";
import { Preview } from "../components/Preview";
import { TypeIcon } from "../components/TypeChip";
import { VirtualList } from "../components/VirtualList";
import { ask } from "../data/thread";
import { count } from "../format";
import { go, route, setQuery } from "../router";
import { highlight, type Filters as Narrowing, passes, wordsOf } from "../search/ranking";
import { announce } from "../state/announce";
import { pins } from "../state/preferences";
import { catalogue, catalogueProblem, loadCatalogue, sources } from "../state/session";

interface Found {
  entries: CatalogueEntry[];
  milliseconds?: number;
}

const NONE: CatalogueEntry[] = [];
let indexed: CatalogueEntry[] | undefined;

/** Return the entries that match the address: immediately without search words, else from the worker. */
function useFound(query: string, filters: Narrowing): Found {
  const all = catalogue.value?.operations ?? NONE;
  const [found, setFound] = useState<{ key: string; ids: string[]; milliseconds: number } | undefined>();
  const key = JSON.stringify([query.trim(), filters, catalogue.value?.version]);
  const plain = useMemo(() => {
    const kept = all.filter((entry) => passes(entry, filters));
    const pinned = new Set(pins.value);
    return [...kept.filter((entry) => pinned.has(entry.id)), ...kept.filter((entry) => !pinned.has(entry.id))];
  }, [all, key, pins.value]);
  useEffect(() => {
    if (indexed !== all && all.length > 0) {
      indexed = all;
      void ask({ kind: "index", entries: all });
    }
    if (!query.trim()) return;
    let isCurrent = true;
    const began = performance.now();
    void ask<{ found: string[] }>({ kind: "search", query, filters }).then((answer) => {
      if (isCurrent) setFound({ key, ids: answer.found, milliseconds: performance.now() - began });
    });
    return () => {
      isCurrent = false;
    };
  }, [key, all]);
  return useMemo(() => {
    if (!query.trim()) return { entries: plain };
    const byId = new Map(all.map((entry) => [entry.id, entry]));
    const entries = (found?.ids ?? [])
      .map((id) => byId.get(id))
      .filter((entry): entry is CatalogueEntry => entry !== undefined);
    return { entries, ...(found ? { milliseconds: found.milliseconds } : {}) };
  }, [plain, found, query.trim() === ""]);
}

export function Search() {
  const { query: parameters } = route.value;
  const query = parameters.get("q") ?? "";
  const filters = {
    source: parameters.get("source") ?? undefined,
    type: parameters.get("type") ?? undefined,
    tag: parameters.get("tag") ?? undefined,
    scope: parameters.get("scope") ?? undefined,
  };
  const { entries, milliseconds } = useFound(query, filters);
  const [marked, setMarked] = useState(0);
  const box = useRef<HTMLInputElement>(null);
  useEffect(() => setMarked(0), [query, filters.source, filters.type, filters.tag, filters.scope]);
  useEffect(() => {
    document.title = query ? `${query} – operations` : "operations";
  }, [query]);
  useEffect(() => {
    if (matchMedia("(min-width: 1024px)").matches) box.current?.focus();
  }, []);
  const total = filters.source
    ? (sources.value.find((source) => source.name === filters.source)?.count ?? 0)
    : (catalogue.value?.operations.length ?? 0);
  const shown = entries[marked];
  useEffect(() => {
    if (query.trim() && milliseconds !== undefined) announce(`${count(entries.length)} of ${count(total)}`);
  }, [entries]);
  const keys = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown") setMarked(Math.min(entries.length - 1, marked + 1));
    else if (event.key === "ArrowUp") setMarked(Math.max(0, marked - 1));
    else if (event.key === "PageDown") setMarked(Math.min(entries.length - 1, marked + 10));
    else if (event.key === "PageUp") setMarked(Math.max(0, marked - 10));
    else if (event.key === "Enter" && shown && !event.ctrlKey) go(to.operation(shown.id));
    else if (event.key === "Escape" && query) setQuery({ q: undefined });
    else if (event.key === "Escape") box.current?.blur();
    else return;
    event.preventDefault();
  };
  if (catalogueProblem.value && !catalogue.value)
    return <Failed problem={catalogueProblem.value} retry={() => void loadCatalogue()} />;
  return (
    <>
      <header class="head">
        <h1 class="hidden">Operations</h1>
        <div class="row">
          <search class="in big grow">
            <Icon name="search" />
            <input
              id="search"
              ref={box}
              type="text"
              role="combobox"
              aria-label="Search operations"
              aria-expanded="true"
              aria-controls="found"
              aria-activedescendant={shown ? `op:${shown.id}` : undefined}
              autocomplete="off"
              spellcheck={false}
              placeholder="Search operations"
              value={query}
              onInput={(event) => setQuery({ q: event.currentTarget.value || undefined })}
              onKeyDown={keys}
            />
            <span class="right t3 n cut">
              {query.trim() ? `${count(entries.length)} of ${count(total)}` : count(entries.length)}
              {query.trim() && milliseconds !== undefined && (
                <span class="hide"> · {Math.max(1, Math.round(milliseconds))} ms</span>
              )}
            </span>
          </search>
          <button type="button" class="phone shut" onClick={() => setQuery({ q: undefined })}>
            Close
          </button>
        </div>
        <Filters filters={filters} found={query.trim() ? entries.length : undefined} />
      </header>
      {!catalogue.value ? (
        <Loading rows={10} height={61} />
      ) : entries.length === 0 && (milliseconds !== undefined || !query.trim()) ? (
        <Nothing query={query} />
      ) : (
        <div class="split wide">
          <section class="pane" aria-label="Operations">
            <VirtualList
              id="found"
              role="listbox"
              aria-label="Operations"
              tabIndex={-1}
              count={entries.length}
              height={61}
              shown={marked}
              row={(index) => (
                <Entry
                  key={entries[index]?.id}
                  entry={entries[index] as CatalogueEntry}
                  words={wordsOf(query)}
                  isMarked={index === marked}
                  mark={() => setMarked(index)}
                />
              )}
            />
          </section>
          <section class="pane hide" aria-label="Preview">
            {shown && <Preview entry={shown} load={api.operation} />}
          </section>
        </div>
      )}
    </>
  );
}

function Nothing(props: { query: string }) {
  if (props.query.trim())
    return (
      <Empty command={`ops search ${shellWord(props.query)}`}>
        No operation matches “{props.query}”. Try fewer words.
      </Empty>
    );
  return (
    <Empty command="ops add openapi NAME URL">
      There are no operations that you may call. Add a source, or sign in with another token.
    </Empty>
  );
}

const FIELDS = 4;

function Entry(props: { entry: CatalogueEntry; words: string[]; isMarked: boolean; mark: () => void }) {
  const { entry, words } = props;
  const { fields = [] } = entry;
  const more = fields.length - FIELDS;
  return (
    <a
      id={`op:${entry.id}`}
      class={`op ${props.isMarked ? "on" : ""} ${entry.deprecated ? "old" : ""}`}
      href={to.operation(entry.id)}
      role="option"
      aria-selected={props.isMarked}
      tabIndex={-1}
      onPointerEnter={(event) =>
        event.pointerType === "mouse" && event.movementX + event.movementY !== 0 && props.mark()
      }
    >
      <TypeIcon type={entry.type} />
      <span class="id">
        <Marked text={entry.id} words={words} />
      </span>
      <span class="ver m hide">{fields.slice(0, FIELDS).join(", ") + (more > 0 ? ` +${more}` : "")}</span>
      <span class="ti">
        <Marked text={entry.title ?? entry.description ?? ""} words={words} />
      </span>
    </a>
  );
}

function Marked(props: { text: string; words: string[] }) {
  return (
    <>
      {highlight(props.text, props.words).map((piece, index) =>
        piece.hit ? <mark key={index}>{piece.text}</mark> : piece.text,
      )}
    </>
  );
}

function Filters(props: { filters: Narrowing; found: number | undefined }) {
  const { source, type, tag, scope } = props.filters;
  const all = (catalogue.value?.operations ?? NONE).filter((entry) => passes(entry, { source }));
  return (
    <div class="row filt">
      <Filter
        name="Source"
        value={source}
        choose={(value) => setQuery({ source: value })}
        options={() => sources.value.map((each) => [each.name, each.count])}
      />
      <Filter
        name="Type"
        value={type}
        choose={(value) => setQuery({ type: value })}
        options={() => tally(all.map((entry) => entry.type))}
      />
      <Filter
        name="Tag"
        value={tag}
        choose={(value) => setQuery({ tag: value })}
        options={() => tally(all.flatMap((entry) => entry.tags ?? []))}
      />
      <Filter
        name="Scope"
        class={scope ? "" : "hide"}
        value={scope}
        choose={(value) => setQuery({ scope: value })}
        options={() => tally(all.flatMap((entry) => entry.scopes ?? []))}
      />
      {props.found !== undefined && <span class="t3 right n phone">{count(props.found)} found</span>}
      <span class="t3 right row hide">
        <kbd>↑</kbd>
        <kbd>↓</kbd>move<kbd>↵</kbd>open<kbd>Esc</kbd>clear
      </span>
    </div>
  );
}

function tally(values: string[]): [string, number][] {
  const counts = new Map<string, number>();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].sort((left, right) => left[0].localeCompare(right[0]));
}

function Filter(props: {
  name: string;
  class?: string;
  value: string | undefined;
  options: () => [string, number][];
  choose: (value: string | undefined) => void;
}) {
  const { name, value } = props;
  if (value) {
    return (
      <button
        type="button"
        class="chip a"
        aria-label={`Remove the filter ${name}: ${value}`}
        onClick={() => props.choose(undefined)}
      >
        <span>
          <span class="hide">{name}: </span>
          {value}
        </span>
        <Icon name="close" small />
      </button>
    );
  }
  return (
    <Menu
      class={props.class ?? ""}
      button={
        <>
          {name}
          <Icon name="down" small />
        </>
      }
    >
      {(close) => {
        const options = props.options();
        if (options.length === 0) return <span class="t3">none</span>;
        return options.map(([option, amount]) => (
          <button
            key={option}
            type="button"
            onClick={() => {
              props.choose(option);
              close();
            }}
          >
            {option}
            <span class="c">{count(amount)}</span>
          </button>
        ));
      }}
    </Menu>
  );
}
