/** State from the feed: running calls, workers and jobs of the sidebar, and subscriptions of screens. */

import { computed, effect, signal } from "@preact/signals";
import { api, token } from "../api/client";
import { type FeedEvent, openFeed } from "../api/feed";
import type { Job, Source, Span, Worker } from "../api/types";
import { can, catalogue, changeSource, connection, loadCatalogue, recoveries, session, suspect } from "./session";

export const running = signal<ReadonlyMap<string, Span>>(new Map());
export const workers = signal<Worker[] | undefined>(undefined);
export const jobs = signal<Job[] | undefined>(undefined);

type Listener = (events: FeedEvent[]) => void;
const listeners = new Set<Listener>();

/** Subscribe to every event of the feed; return a function that unsubscribes. */
export function listen(listener: Listener): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export async function loadWorkers(): Promise<void> {
  if (can("workers")) workers.value = (await api.workers()).workers;
}

export async function loadJobs(): Promise<void> {
  if (can("jobs")) jobs.value = (await api.jobs()).jobs;
}

async function loadRunning(): Promise<void> {
  if (!can("calls")) return;
  const { calls } = await api.calls({ outcome: "running", roots: 1, limit: 200 });
  running.value = new Map(calls.map((span) => [span.requestId, span]));
}

/** Fetch the sidebar's data; failures are shown by the connection state only. */
async function refresh(): Promise<void> {
  await Promise.allSettled([loadWorkers(), loadJobs(), loadRunning()]);
}

function replace<T>(list: T[] | undefined, item: T, same: (one: T) => boolean): T[] {
  const all = list ?? [];
  return all.some(same) ? all.map((one) => (same(one) ? item : one)) : [...all, item];
}

function apply(events: FeedEvent[]): void {
  let calls: Map<string, Span> | undefined;
  for (const { type, data } of events) {
    if (type.startsWith("call.")) {
      const span = data as Span;
      if (span.parentRequestId) continue;
      calls ??= new Map(running.value);
      if (span.outcome) calls.delete(span.requestId);
      else calls.set(span.requestId, span);
    } else if (type === "worker.changed") {
      const worker = data as Worker;
      workers.value = replace(workers.value, worker, (one) => one.name === worker.name);
    } else if (type === "job.changed") {
      const job = data as Job;
      jobs.value = replace(jobs.value, job, (one) => one.id === job.id);
    } else if (type === "source.changed") changeSource(data as Source);
    else if (type === "catalogue.changed" || type === "hello") void changed((data as { version: string }).version);
    else if (type === "overflow") void refresh();
  }
  if (calls) running.value = calls;
  for (const listener of listeners) listener(events);
}

async function changed(version: string): Promise<void> {
  if (version !== catalogue.peek()?.version) await loadCatalogue();
}

/** Id and token of the identity, which the feed belongs to; empty if the identity has no feed. */
const owner = computed(() => (can("feed") ? `${session.value?.identity?.id ?? ""} ${token.value}` : ""));

/** Keep a feed open while the session is permitted one. */
export function startLive(): void {
  effect(() => {
    if (!owner.value) return;
    void refresh();
    const lost = (isOpen: boolean) => !isOpen && connection.peek().state === "connected" && suspect();
    return openFeed({ receive: apply, changed: lost });
  });
  effect(() => {
    if (recoveries.value > 0) void refresh();
  });
}
