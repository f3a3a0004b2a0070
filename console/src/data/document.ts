/** The data of a response: small data is parsed here, large data in a worker. Views fetch slices. */

import { parseJson, writeJson } from "../json/text";
import { getAt, isObject, type Json, type JsonObject, type Path } from "../json/value";
import {
  childrenOf,
  columnsOf,
  countKeys,
  csvOf,
  findText,
  type Node,
  nodeOf,
  orderOf,
  type Row,
  rowsOf,
  type Sort,
  tablePath,
} from "./nodes";

export const LARGE = 256 << 10;
export const LARGEST = 32 << 20;

/** Facts about a parsed document. */
export interface Summary {
  root: Node;
  keys: number;
  meta?: JsonObject;
  table?: Path;
}

export interface DataDocument {
  summary: Summary;
  /** The value, if it is small enough for the page. */
  value?: Json | undefined;
  children(path: Path, from: number, count: number): Promise<Node[]>;
  columns(path: Path): Promise<string[]>;
  rows(path: Path, columns: string[], sort: Sort | undefined, from: number, count: number): Promise<Row[]>;
  csv(path: Path, columns: string[], sort: Sort | undefined): Promise<string>;
  find(words: string): Promise<Path[]>;
  /** A complete part, for copying, downloading and bytes. */
  part(path: Path): Promise<Json | undefined>;
  text(path: Path, indent: number): Promise<string>;
  close(): void;
}

/** The document of a value in memory. A worker provides the same methods by messages. */
export class LocalDocument implements DataDocument {
  readonly summary: Summary;
  private orders = new Map<string, number[]>();

  constructor(
    readonly value: Json,
    meta?: JsonObject,
  ) {
    const table = tablePath(value);
    this.summary = {
      root: nodeOf("", value),
      keys: countKeys(value),
      ...(meta ? { meta } : {}),
      ...(table ? { table } : {}),
    };
  }

  async children(path: Path, from: number, count: number): Promise<Node[]> {
    return childrenOf(this.value, path, from, count);
  }

  async columns(path: Path): Promise<string[]> {
    return columnsOf(getAt(this.value, path)) ?? [];
  }

  private order(path: Path, sort: Sort | undefined): number[] | undefined {
    if (!sort) return undefined;
    const key = JSON.stringify([path, sort]);
    let order = this.orders.get(key);
    if (!order) {
      order = orderOf(this.value, path, sort);
      this.orders.clear();
      this.orders.set(key, order);
    }
    return order;
  }

  async rows(path: Path, columns: string[], sort: Sort | undefined, from: number, count: number): Promise<Row[]> {
    return rowsOf(this.value, path, columns, this.order(path, sort), from, count);
  }

  async csv(path: Path, columns: string[], sort: Sort | undefined): Promise<string> {
    return csvOf(this.value, path, columns, this.order(path, sort));
  }

  async find(words: string): Promise<Path[]> {
    return findText(this.value, words);
  }

  async part(path: Path): Promise<Json | undefined> {
    return getAt(this.value, path);
  }

  async text(path: Path, indent: number): Promise<string> {
    return writeJson(getAt(this.value, path), indent);
  }

  close(): void {}
}

/** Parse an envelope (or any other JSON) as a document. */
export function readText(text: string, isEnvelope: boolean): LocalDocument {
  const read = parseJson(text);
  if (isEnvelope && isObject(read) && isObject(read.meta)) return new LocalDocument(read.data ?? null, read.meta);
  return new LocalDocument(read);
}
