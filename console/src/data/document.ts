/** The data of a response: small data is parsed on the page, large data in a worker. Views fetch slices. */

import { fromBase64, parseJson, writeJson } from "../json/text";
import { getAt, isBytes, isObject, type Json, type JsonObject, type Path } from "../json/value";
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
  /** The path of the first table. */
  table?: Path;
  /** Its number of rows. */
  rows?: number;
}

export interface DataDocument {
  summary: Summary;
  /** The value, if it is small enough for the page. */
  value?: Json | undefined;
  children(path: Path, from: number, count: number): Promise<Node[]>;
  columns(path: Path): Promise<string[]>;
  rows(path: Path, columns: string[], sort: Sort | undefined, from: number, count: number): Promise<Row[]>;
  csv(path: Path, columns: string[], sort: Sort | undefined): Promise<Blob>;
  find(words: string): Promise<Path[]>;
  /** The first characters of a string, or another value as JSON. */
  start(path: Path, most: number): Promise<string>;
  /** The content of bytes. */
  bytes(path: Path): Promise<Blob>;
  /** A part as JSON, for copying. */
  text(path: Path, indent: number): Promise<string>;
  /** A part as JSON, for downloading. */
  file(path: Path, indent: number): Promise<Blob>;
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
    const list = table && getAt(value, table);
    this.summary = {
      root: nodeOf("", value),
      keys: countKeys(value),
      ...(meta ? { meta } : {}),
      ...(table && Array.isArray(list) ? { table, rows: list.length } : {}),
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

  async csv(path: Path, columns: string[], sort: Sort | undefined): Promise<Blob> {
    return new Blob([csvOf(this.value, path, columns, this.order(path, sort))], { type: "text/csv" });
  }

  async find(words: string): Promise<Path[]> {
    return findText(this.value, words);
  }

  async start(path: Path, most: number): Promise<string> {
    const part = getAt(this.value, path);
    return (typeof part === "string" ? part : writeJson(part)).slice(0, most);
  }

  async bytes(path: Path): Promise<Blob> {
    const part = getAt(this.value, path);
    return new Blob(isBytes(part) ? [fromBase64(part.$bytes)] : []);
  }

  async text(path: Path, indent: number): Promise<string> {
    return writeJson(getAt(this.value, path), indent);
  }

  async file(path: Path, indent: number): Promise<Blob> {
    return new Blob([await this.text(path, indent)], { type: "application/json" });
  }

  close(): void {}
}

/** Parse an envelope (or any other JSON) as a document. */
export function readText(text: string, isEnvelope: boolean): LocalDocument {
  const read = parseJson(text);
  if (isEnvelope && isObject(read) && isObject(read.meta)) return new LocalDocument(read.data ?? null, read.meta);
  return new LocalDocument(read);
}
