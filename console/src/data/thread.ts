/** The page's side of the worker: requests, and documents held by the worker. */

import type { Path } from "../json/value";
import type { DataDocument, Summary } from "./document";
import type { Question, Reply } from "./messages";
import type { Node, Row, Sort } from "./nodes";
import type { CallRequest, FollowPart, Lost, Received } from "./requests";

interface Waiting {
  resolve: (value: never) => void;
  reject: (error: Error) => void;
  part?: (part: never) => void;
}

let worker: Worker | undefined;
let count = 0;
const waiting = new Map<number, Waiting>();

function start(): Worker {
  const made = new Worker(new URL("./worker.ts", import.meta.url), { type: "module" });
  made.addEventListener("message", (event: MessageEvent<Reply>) => {
    const { id, result, error, part } = event.data;
    const asked = waiting.get(id);
    if (part !== undefined) {
      asked?.part?.(part as never);
      post(++count, { kind: "taken", of: id });
      return;
    }
    waiting.delete(id);
    if (error === undefined) asked?.resolve(result as never);
    else asked?.reject(new Error(error));
  });
  return made;
}

function post(id: number, question: Question): void {
  worker ??= start();
  worker.postMessage({ id, question });
}

/** Send a request to the worker. */
export function ask<T>(question: Question): Promise<T> {
  return new Promise<T>((resolve, reject) => {
    waiting.set(++count, { resolve: resolve as (value: never) => void, reject });
    post(count, question);
  });
}

/** Send a request that ends with the signal, and whose result may come in parts. */
function askUntil<T>(question: Question, signal: AbortSignal, part?: (part: never) => void): Promise<T> {
  const id = ++count;
  return new Promise<T>((resolve, reject) => {
    const abort = () => {
      waiting.delete(id);
      post(++count, { kind: "abort", of: id });
      reject(signal.reason);
    };
    if (signal.aborted) return reject(signal.reason);
    signal.addEventListener("abort", abort, { once: true });
    const ended = () => signal.removeEventListener("abort", abort);
    waiting.set(id, {
      resolve: (value: never) => {
        ended();
        resolve(value);
      },
      reject: (error) => {
        ended();
        reject(error);
      },
      ...(part ? { part } : {}),
    });
    post(id, question);
  });
}

/** Send a call; the worker keeps a large result, whose document has this number. */
export async function sendInWorker(
  request: CallRequest,
  signal: AbortSignal,
): Promise<{ answer: Received | Lost; document: number }> {
  const document = ++count;
  return { answer: await askUntil<Received | Lost>({ kind: "call", document, request }, signal), document };
}

/** Follow a stream; `receive` gets its parts. */
export function followInWorker(
  request: CallRequest,
  signal: AbortSignal,
  receive: (part: FollowPart) => void,
): Promise<Received | Lost> {
  return askUntil({ kind: "follow", request }, signal, receive as (part: never) => void);
}

type Read = "children" | "columns" | "rows" | "csv" | "find" | "start" | "bytes" | "text" | "file";

/** A document in the worker. */
export class RemoteDocument implements DataDocument {
  constructor(
    readonly id: number,
    readonly summary: Summary,
  ) {}

  private ask<T>(kind: Read, ...given: unknown[]): Promise<T> {
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

  csv(path: Path, columns: string[], sort: Sort | undefined): Promise<Blob> {
    return this.ask("csv", path, columns, sort);
  }

  find(words: string): Promise<Path[]> {
    return this.ask("find", words);
  }

  start(path: Path, most: number): Promise<string> {
    return this.ask("start", path, most);
  }

  bytes(path: Path): Promise<Blob> {
    return this.ask("bytes", path);
  }

  text(path: Path, indent: number): Promise<string> {
    return this.ask("text", path, indent);
  }

  file(path: Path, indent: number): Promise<Blob> {
    return this.ask("file", path, indent);
  }

  close(): void {
    void ask({ kind: "close", document: this.id });
  }
}
