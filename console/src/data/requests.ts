/** Calls over HTTP as the worker sends them: the page gets small bodies as text, large ones as a blob and a summary. */

import { readEvents, type ServerEvent } from "../api/sse";
import { LARGE, LARGEST, type LocalDocument, readText, type Summary } from "./document";

export const ENVELOPE_TYPE = "application/vnd.operations.envelope+json";

export interface CallRequest {
  address: string;
  headers: [string, string][];
  body: string;
}

/** A response whose body is a blob, which the browser may keep outside the memory of the page. */
export interface Received {
  status: number;
  title: string;
  requestId: string;
  contentType: string;
  body: Blob;
  /** The body as text, if it is small. */
  text?: string;
  /** Facts about a large result, which stays in the worker. */
  summary?: Summary;
}

/** The outcome of a request without a complete response: it was not sent, or its response was truncated. */
export interface Lost {
  lost: "before" | "during";
}

/** An event with the time of its arrival. */
export interface TimedEvent extends ServerEvent {
  at: number;
}

export interface FollowPart {
  requestId?: string;
  items?: TimedEvent[];
}

/** Limits on the events that wait for the page and on their length; beyond them, the worker stops reading the stream. */
const MOST_EVENTS = 5_000;
const MOST_LENGTH = 16 << 20;
/** Updates faster than ten times a second are unreadable. */
const EVERY_MS = 100;

function send(request: CallRequest, signal: AbortSignal): Promise<Response> {
  const { address, headers, body } = request;
  const options = { credentials: "omit", redirect: "error", referrerPolicy: "no-referrer" } as const;
  return fetch(address, { method: "POST", headers, body, signal, ...options });
}

async function received(response: Response): Promise<Received> {
  const body = await response.blob();
  return {
    status: response.status,
    title: response.statusText,
    requestId: response.headers.get("Operations-Request-Id") ?? "",
    contentType: response.headers.get("Content-Type") ?? "",
    body,
    ...(body.size <= LARGE ? { text: await body.text() } : {}),
  };
}

/** Send a call and read its response; `keep` stores the document of a large result. */
export async function sendCall(
  request: CallRequest,
  signal: AbortSignal,
  keep: (document: LocalDocument) => void,
): Promise<Received | Lost> {
  let response: Response | undefined;
  let answer: Received;
  try {
    response = await send(request, signal);
    answer = await received(response);
  } catch {
    return { lost: response ? "during" : "before" };
  }
  if (!response.ok || answer.text !== undefined || answer.body.size > LARGEST) return answer;
  const document = readText(await answer.body.text(), answer.contentType.startsWith(ENVELOPE_TYPE));
  keep(document);
  return { ...answer, summary: document.summary };
}

/** Follow a stream: `pass` gives events to the page and resolves when the page has taken them. */
export async function followStream(
  request: CallRequest,
  signal: AbortSignal,
  pass: (part: FollowPart) => Promise<void>,
): Promise<Received | Lost> {
  let response: Response;
  try {
    response = await send(request, signal);
    if (!response.ok || !response.body) return await received(response);
  } catch {
    return { lost: "before" };
  }
  await pass({ requestId: response.headers.get("Operations-Request-Id") ?? "" });
  const batches = new Batches((items) => pass({ items }));
  try {
    await readEvents(response.body, (events) => batches.add(events));
  } catch {
    // The connection was lost: received events are passed on.
  }
  await batches.end();
  return { lost: "during" };
}

/** Collects events for the page: one batch at a time, at most every 100 ms. */
export class Batches {
  private items: TimedEvent[] = [];
  private length = 0;
  private passing: Promise<void> | undefined;

  constructor(
    private readonly pass: (items: TimedEvent[]) => Promise<void>,
    private readonly everyMs = EVERY_MS,
  ) {}

  /** Add events; the promise is pending while the maximum number of events or characters waits. */
  async add(items: ServerEvent[]): Promise<void> {
    const at = Date.now();
    for (const item of items) {
      this.items.push({ ...item, at });
      this.length += item.data.length;
    }
    if (this.items.length > 0) this.passing ??= this.run();
    while (this.items.length >= MOST_EVENTS || this.length >= MOST_LENGTH) await this.passing;
  }

  /** Resolves when the page has taken every event. */
  async end(): Promise<void> {
    while (this.passing) await this.passing;
  }

  private async run(): Promise<void> {
    const { items } = this;
    this.items = [];
    this.length = 0;
    await Promise.all([this.pass(items), new Promise((next) => setTimeout(next, this.everyMs))]);
    this.passing = this.items.length > 0 ? this.run() : undefined;
  }
}
