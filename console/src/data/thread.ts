/** The page's side of the worker: requests, and documents held by the worker. */

import { parseJson } from "../json/text";
import type { Json, Path } from "../json/value";
import type { DataDocument, Summary } from "./document";
import type { Question, Reply } from "./messages";
import type { Node, Row, Sort } from "./nodes";

let worker: Worker | undefined;
let count = 0;
const waiting = new Map<number, { resolve: (value: never) => void; reject: (error: Error) => void }>();

function start(): Worker {
  const made = new Worker(new URL("./worker.ts", import.meta.url), { type: "module" });
  made.addEventListener("message", (event: MessageEvent<Reply>) => {
    const { id, result, error } = event.data;
    const asked = waiting.get(id);
    waiting.delete(id);
    if (error === undefined) asked?.resolve(result as never);
    else asked?.reject(new Error(error));
  });
  return made;
}

/** Send a request to the worker; buffers in `moved` are transferred, not copied. */
export function ask<T>(question: Question, moved: Transferable[] = []): Promise<T> {
  worker ??= start();
  const id = ++count;
  return new Promise<T>((resolve, reject) => {
    waiting.set(id, { resolve: resolve as (value: never) => void, reject });
    worker?.postMessage({ id, question }, moved);
  });
}

/** A document in the worker. */
export class RemoteDocument implements DataDocument {
  constructor(
    readonly id: number,
    readonly summary: Summary,
  ) {}

  private ask<T>(
    kind: "children" | "columns" | "rows" | "csv" | "find" | "part" | "text",
    ...given: unknown[]
  ): Promise<T> {
    return ask<T>({ kind, document: this.id, given });
  }

  children(path: Path, from: number, most: number): Promise<Node[]> {
    return this.ask("children", path, from, most);
  }

  columns(path: Path): Promise<string[]> {
    return this.ask("columns", path);
  }

  rows(path: Path, columns: string[], sort: Sort | undefined, from: number, most: number): Promise<Row[]> {
    return this.ask("rows", path, columns, sort, from, most);
  }

  csv(path: Path, columns: string[], sort: Sort | undefined): Promise<string> {
    return this.ask("csv", path, columns, sort);
  }

  find(words: string): Promise<Path[]> {
    return this.ask("find", words);
  }

  part(path: Path): Promise<Json | undefined> {
    return this.ask<string>("text", path, 0).then(parseJson); // structured clones would lose the digits of numbers
  }

  text(path: Path, indent: number): Promise<string> {
    return this.ask("text", path, indent);
  }

  close(): void {
    void ask({ kind: "close", document: this.id });
  }
}

export async function readInWorker(body: ArrayBuffer, isEnvelope: boolean): Promise<RemoteDocument> {
  const document = ++count;
  const summary = await ask<Summary>({ kind: "read", document, body, isEnvelope }, [body]);
  return new RemoteDocument(document, summary);
}
