/** The page's own calls, kept in IndexedDB: the last 200 of a server and identity, and at most 20 MB. */

import { signal } from "@preact/signals";
import type { Difference, Problem } from "../api/types";
import { parseJson, writeJson } from "../json/text";
import type { Json } from "../json/value";

export interface PastCall {
  /** The request id; a local one without a response. */
  id: string;
  owner: string;
  operationId: string;
  at: number;
  durationMs: number;
  traceId: string;
  /** Without secrets. */
  input: Json;
  outcome: "ok" | "failed" | "cancelled";
  status: number;
  /** The label of the chip: 201, 422, ok. */
  label: string;
  problem?: Problem;
  /** The response body, up to 1 MB. */
  body?: string;
  differences?: Difference[];
  bytes: number;
  /** Length of the stored JSON. */
  stored?: number;
}

/** A call in the database: its JSON keeps the digits of numbers, which a copy of the objects would lose. */
interface Stored {
  id: string;
  owner: string;
  json: string;
}

const MOST_CALLS = 200;
const MOST_BYTES = 20 << 20;
export const LARGEST_BODY = 1 << 20;
const STORE = "calls";

/** Newest first. */
export const history = signal<PastCall[]>([]);

function finished<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

let opened: Promise<IDBDatabase> | undefined;

function database(): Promise<IDBDatabase> {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("operations.console", 2);
    request.onupgradeneeded = ({ oldVersion }) => {
      if (oldVersion > 0) request.result.deleteObjectStore(STORE); // calls without JSON
      request.result.createObjectStore(STORE, { keyPath: "id" });
    };
    request.onsuccess = () => {
      request.result.onversionchange = () => request.result.close(); // for a page of a newer version
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("a page of an older version is open"));
  });
  return opened;
}

async function withStore<T>(
  mode: IDBTransactionMode,
  use: (store: IDBObjectStore) => Promise<T>,
): Promise<T | undefined> {
  try {
    const transaction = (await database()).transaction(STORE, mode);
    return await use(transaction.objectStore(STORE));
  } catch {
    return undefined; // Private windows may have no database: history then lasts as long as the page.
  }
}

export async function loadHistory(owner: string): Promise<void> {
  const all = (await withStore("readonly", (store) => finished(store.getAll() as IDBRequest<Stored[]>))) ?? [];
  const own = all.filter((call) => call.owner === owner).map(read);
  const newer = history.value.filter((call) => call.owner === owner && !own.some((each) => each.id === call.id));
  const { kept, dropped } = withinLimits([...newer, ...own].sort((left, right) => right.at - left.at));
  history.value = kept;
  await withStore("readwrite", (store) => remove(store, dropped)); // several tabs may store calls
}

function read({ json }: Stored): PastCall {
  return { ...(parseJson(json) as unknown as PastCall), stored: json.length };
}

async function remove(store: IDBObjectStore, calls: PastCall[]): Promise<void> {
  for (const { id } of calls) await finished(store.delete(id));
}

let isEnded = false;

export async function remember(call: PastCall): Promise<void> {
  if (isEnded) return;
  const json = writeJson(call);
  const all = [{ ...call, stored: json.length }, ...history.value.filter((each) => each.id !== call.id)];
  const { kept, dropped } = withinLimits(all);
  history.value = kept;
  const stored: Stored = { id: call.id, owner: call.owner, json };
  await withStore("readwrite", async (store) => {
    await finished(store.put(stored));
    await remove(store, dropped);
  });
}

/** Split calls, newest first, into kept and dropped ones. */
export function withinLimits(calls: PastCall[]): { kept: PastCall[]; dropped: PastCall[] } {
  let bytes = 0;
  const kept: PastCall[] = [];
  const dropped: PastCall[] = [];
  for (const call of calls) {
    bytes += call.stored ?? 0;
    (kept.length < MOST_CALLS && bytes <= MOST_BYTES ? kept : dropped).push(call);
  }
  return { kept, dropped };
}

/** Clear the history before the identity changes; calls that are still running are not stored. */
export function endHistory(): Promise<void> {
  isEnded = true;
  return clearHistory();
}

export async function clearHistory(): Promise<void> {
  history.value = [];
  await withStore("readwrite", (store) => finished(store.clear()));
}
