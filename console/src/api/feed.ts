/** The server's event feed: it reconnects and resumes after the last event. */

import { API } from "../addresses";
import { headers, refusals, send } from "./client";
import { readEvents } from "./sse";

const SILENCE_MS = 30_000;
const RETRY_MS = 1_000;

export interface FeedEvent {
  type: string;
  data: unknown;
}

export interface FeedOptions {
  topics?: string;
  trace?: string;
  receive: (events: FeedEvent[]) => void;
  /** Called when the feed opens or is lost. */
  changed?: (isOpen: boolean) => void;
}

/** Open a feed; return a function that closes it. */
export function openFeed(options: FeedOptions): () => void {
  const stop = new AbortController();
  void run(options, stop.signal);
  return () => stop.abort();
}

async function run(options: FeedOptions, stopped: AbortSignal): Promise<void> {
  let last = "";
  while (!stopped.aborted) {
    const attempt = new AbortController();
    const abort = () => attempt.abort();
    stopped.addEventListener("abort", abort, { once: true });
    let silence = setTimeout(abort, SILENCE_MS);
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(abort, SILENCE_MS);
    };
    try {
      last = await follow(options, attempt.signal, last, heard);
    } catch {
      // A lost feed is reopened below.
    }
    clearTimeout(silence);
    stopped.removeEventListener("abort", abort);
    if (stopped.aborted) return;
    options.changed?.(false);
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

async function follow(options: FeedOptions, signal: AbortSignal, last: string, heard: () => void): Promise<string> {
  const query = new URLSearchParams();
  if (options.topics) query.set("topics", options.topics);
  if (options.trace) query.set("trace", options.trace);
  const given = headers({ Accept: "text/event-stream" });
  if (last) given.set("Last-Event-ID", last);
  const response = await send(`${API}feed?${query}`, { headers: given, signal });
  if (response.status === 401) refusals.refused();
  if (!response.ok || !response.body) return last;
  options.changed?.(true);
  let newest = last;
  try {
    await readEvents(response.body, (events) => {
      heard();
      if (events.length === 0) return;
      newest = events.at(-1)?.id || newest;
      options.receive(events.map((event) => ({ type: event.type, data: JSON.parse(event.data) as unknown })));
    });
  } catch {
    // The connection was lost: received events are kept.
  }
  return newest;
}
