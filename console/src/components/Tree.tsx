/** A value as a tree of lines (ARIA tree). Lines are fetched in slices; long lists are shown in parts. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { DataDocument } from "../data/document";
import type { Node } from "../data/nodes";
import { size } from "../format";
import type { Path } from "../json/value";
import { pathText } from "../json/value";
import { LongText, SHOWN } from "./Blocks";
import { CopyButton, copyText } from "./Button";
import { Dialog } from "./Dialog";
import { Icon } from "./Icon";
import { useNearby } from "./VirtualList";

const SLICE = 200;
const ROW = 22;
const LINE = 80;

interface Line {
  path: Path;
  node: Node;
  depth: number;
  /** For the line after a slice: the number of remaining lines. */
  more?: number;
}

interface Opened {
  children: Node[];
}

const keyOf = (path: Path) => JSON.stringify(path);

interface TreeProps {
  document: DataDocument;
  /** Called with the path of the selected line. */
  select?: (path: Path) => void;
  /** Highlighted lines, and the current one. */
  hits?: Path[] | undefined;
  hit?: number;
  filter?: (path: Path) => void;
  label?: string;
}

export function Tree(props: TreeProps) {
  const { document: data } = props;
  const [opened, setOpened] = useState<ReadonlyMap<string, Opened>>(new Map());
  const [selected, setSelected] = useState("");
  const [shown, setShown] = useState<{ path: Path; text: string; size: number } | undefined>();
  const box = useRef<HTMLDivElement>(null);

  const open = async (path: Path, from = 0) => {
    const children = await data.children(path, from, SLICE);
    setOpened((old) => {
      const before = from > 0 ? (old.get(keyOf(path))?.children ?? []) : [];
      return new Map([...old, [keyOf(path), { children: [...before, ...children] }]]);
    });
  };
  const shut = (path: Path) => setOpened((old) => new Map([...old].filter(([key]) => key !== keyOf(path))));

  useEffect(() => {
    setOpened(new Map());
    setSelected("");
    void openFirst(data, open);
  }, [data]);
  useEffect(() => {
    const path = props.hits?.[props.hit ?? 0];
    if (!path) return;
    void (async () => {
      for (let depth = 0; depth < path.length; depth++) {
        const above = path.slice(0, depth);
        const key = path[depth];
        const has = opened.get(keyOf(above))?.children.some((child) => child.key === key);
        if (!has) await open(above, typeof key === "number" ? Math.floor(key / SLICE) * SLICE : 0);
      }
      setSelected(keyOf(path));
      props.select?.(path);
    })();
  }, [props.hits, props.hit]);

  const lines = linesOf(opened, data.summary.root);
  const at = Math.max(
    0,
    lines.findIndex((line) => keyOf(line.path) === selected && line.more === undefined),
  );
  const choose = (line: Line | undefined) => {
    if (!line || line.more !== undefined) return;
    setSelected(keyOf(line.path));
    props.select?.(line.path);
    requestAnimationFrame(() => box.current?.querySelector<HTMLElement>('[aria-selected="true"]')?.focus());
  };
  const showAll = async ({ path, node }: Line) =>
    setShown({ path, text: await data.start(path, SHOWN), size: node.size });
  /** Fold or unfold a branch; show a long text. */
  const toggle = (line: Line) => {
    if (isLong(line.node)) void showAll(line);
    else if (opened.has(keyOf(line.path))) shut(line.path);
    else if (isBranch(line.node)) void open(line.path);
  };
  const keys = (event: KeyboardEvent) => {
    const line = lines[at];
    if (!line || event.ctrlKey || event.metaKey || event.altKey) return;
    const isOpen = opened.has(keyOf(line.path));
    if (event.key === "ArrowDown") choose(lines[at + 1]);
    else if (event.key === "ArrowUp") choose(lines[at - 1]);
    else if (event.key === "ArrowRight") isBranch(line.node) && !isOpen ? void open(line.path) : choose(lines[at + 1]);
    else if (event.key === "ArrowLeft")
      isOpen ? shut(line.path) : choose(lines.find((each) => keyOf(each.path) === keyOf(line.path.slice(0, -1))));
    else if (event.key === "Home") choose(lines[0]);
    else if (event.key === "End") choose(lines.at(-1));
    else if (event.key === "Enter") toggle(line);
    else return;
    event.preventDefault();
  };
  const hits = new Set(props.hits?.map(keyOf));
  return (
    <>
      <div class="tree" role="tree" aria-label={props.label ?? "Data"} ref={box} onKeyDown={keys}>
        <TreeLines lines={lines}>
          {(line, index) => {
            const key = keyOf(line.path);
            if (line.more !== undefined) {
              return (
                <div key={`${key} more`} role="treeitem" aria-level={line.depth + 1} tabIndex={-1}>
                  <Guides depth={line.depth} />
                  <button type="button" class="more" onClick={() => void open(line.path, line.more)}>
                    show more of {line.node.size.toLocaleString("en")}
                  </button>
                </div>
              );
            }
            const isSelected = key === selected;
            return (
              <div
                key={key}
                role="treeitem"
                aria-level={line.depth + 1}
                aria-expanded={isBranch(line.node) ? opened.has(key) : undefined}
                aria-selected={isSelected}
                class={hits.has(key) ? "hit" : ""}
                tabIndex={index === at ? 0 : -1}
                onClick={() => {
                  choose(line);
                  if (isBranch(line.node)) toggle(line);
                }}
              >
                <Guides depth={line.depth} />
                <span class="tw">{isBranch(line.node) && <Icon name={opened.has(key) ? "down" : "right"} />}</span>
                <span class="k">{String(line.node.key)}</span>
                <span class="p">: </span>
                <Value node={line.node} isOpen={opened.has(key)} />
                {isLong(line.node) && (
                  <button
                    type="button"
                    class="more"
                    tabIndex={-1}
                    onClick={(event) => {
                      event.stopPropagation();
                      void showAll(line);
                    }}
                  >
                    show all
                  </button>
                )}
                <span class="act">
                  <button
                    type="button"
                    tabIndex={-1}
                    aria-label={`Copy ${pathText(line.path)}`}
                    onClick={(event) => {
                      event.stopPropagation();
                      void data.text(line.path, 2).then(copyText);
                    }}
                  >
                    <Icon name="copy" small />
                  </button>
                  {props.filter && (
                    <button
                      type="button"
                      tabIndex={-1}
                      aria-label="Find this key"
                      onClick={(event) => {
                        event.stopPropagation();
                        props.filter?.(line.path);
                      }}
                    >
                      <Icon name="filter" small />
                    </button>
                  )}
                </span>
              </div>
            );
          }}
        </TreeLines>
      </div>
      {shown && (
        <Dialog class="wide" title={pathText(shown.path)} close={() => setShown(undefined)}>
          <LongText text={shown.text} size={shown.size} />
          <CopyButton label="Copy" text={() => data.start(shown.path, shown.size)}>
            Copy
          </CopyButton>
        </Dialog>
      )}
    </>
  );
}

/** All lines of a small tree, or the lines of a large tree near the viewport. */
function TreeLines(props: { lines: Line[]; children: (line: Line, index: number) => preact.ComponentChildren }) {
  const box = useRef<HTMLDivElement>(null);
  const { lines } = props;
  const { from, to } = useNearby(box, lines.length, ROW);
  return (
    <div
      ref={box}
      role="presentation"
      style={{ paddingTop: `${from * ROW}px`, paddingBottom: `${(lines.length - to) * ROW}px` }}
    >
      {lines.slice(from, to).map((line, index) => props.children(line, from + index))}
    </div>
  );
}

function linesOf(opened: ReadonlyMap<string, Opened>, root: Node): Line[] {
  const lines: Line[] = [];
  const walk = (path: Path, node: Node, depth: number) => {
    const found = opened.get(keyOf(path));
    if (!found) return;
    for (const child of found.children) {
      const below = [...path, child.key];
      lines.push({ path: below, node: child, depth });
      walk(below, child, depth + 1);
    }
    if (found.children.length < node.size) lines.push({ path, node, depth, more: found.children.length });
  };
  walk([], root, 0);
  return lines;
}

/** Expand the root and a few small branches. */
async function openFirst(data: DataDocument, open: (path: Path) => Promise<void>): Promise<void> {
  await open([]);
  const { root } = data.summary;
  if (root.size > 5) return;
  const children = await data.children([], 0, 5);
  for (const child of children) if (isBranch(child) && child.size <= 20) await open([child.key]);
}

/** Whether a text may be wider than its line. */
function isLong(node: Node): boolean {
  return node.kind === "string" && node.size > LINE;
}

export function isBranch(node: Node): boolean {
  return (node.kind === "object" || node.kind === "array") && node.size > 0;
}

function Guides(props: { depth: number }) {
  return (
    <>
      {Array.from({ length: props.depth }, (_, index) => (
        <span class="g" key={index} />
      ))}
    </>
  );
}

const DATE = /^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)$/;

/** The local time of a text that is a date. */
export function localTime(text: string | undefined): string | undefined {
  return text !== undefined && DATE.test(text) ? new Date(text).toLocaleString() : undefined;
}

/** A coloured scalar, or the summary of a branch. */
export function Value(props: { node: Node; isOpen?: boolean }) {
  const { node } = props;
  if (node.kind === "object") {
    return (
      <span class="p">
        {`{${node.size}}`}
        {node.hint && !props.isOpen ? `  ${node.hint}` : ""}
      </span>
    );
  }
  if (node.kind === "array") return <span class="p">{`[${node.size}]`}</span>;
  if (node.kind === "bytes") return <span class="p">bytes, {size(node.size)}</span>;
  const text = node.text ?? "";
  if (node.kind === "string") {
    const local = localTime(text);
    const cut = node.size > text.length ? ` … ${node.size.toLocaleString("en")} characters` : "";
    return (
      <span class="v-s" title={local}>
        {JSON.stringify(text)}
        {cut}
      </span>
    );
  }
  return <span class={node.kind === "number" ? "v-d" : "v-l"}>{text}</span>;
}
