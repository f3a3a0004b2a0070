/** Calls of operations over HTTP: one response, or a stream of events. Aborting a request cancels its call. */

import type { DataDocument } from "../data/document";
import { type CallRequest, ENVELOPE_TYPE, type Received, type TimedEvent } from "../data/requests";
import { followInWorker, RemoteDocument, sendInWorker } from "../data/thread";
import { writeJson } from "../json/text";
import type { Json } from "../json/value";
import { headers, problemOf, RequestError, refusals, UNREACHABLE } from "./client";
import type { Problem } from "./types";

export const INPUT_TYPE = "application/vnd.operations+json";
/** Larger problems are not parsed: their status is shown. */
const LARGEST_PROBLEM = 1 << 20;

export interface CallOptions {
  address: string;
  input: Json;
  deadlineSeconds?: number | undefined;
  idempotencyKey?: string | undefined;
  traceId: string;
  signal: AbortSignal;
  /** The id of the last received event, to resume a stream. */
  lastEventId?: string | undefined;
}

/** The response of a call: `document` is in the worker if the body is large. */
export interface Answer extends Omit<Received, "summary"> {
  document?: DataDocument;
  problem?: Problem;
}

function requestOf(options: CallOptions, accept: string): CallRequest {
  const given = headers({ Accept: accept, "Content-Type": INPUT_TYPE, traceparent: traceparent(options.traceId) });
  if (options.deadlineSeconds !== undefined) given.set("Operations-Timeout", String(options.deadlineSeconds));
  if (options.idempotencyKey) given.set("Idempotency-Key", options.idempotencyKey);
  if (options.lastEventId) given.set("Last-Event-ID", options.lastEventId);
  const address = new URL(options.address, location.href).href; // relative ones would be relative to the worker's file
  return { address, headers: [...given], body: writeJson(options.input) };
}

/** Call an operation. Errors are returned as problems; only an aborted or unanswered request raises. */
export async function call(options: CallOptions): Promise<Answer> {
  const { answer, document } = await sendInWorker(requestOf(options, ENVELOPE_TYPE), options.signal);
  if ("lost" in answer) {
    if (answer.lost === "before") throw new RequestError(UNREACHABLE);
    throw new RequestError({
      ...UNREACHABLE,
      executed: "unknown",
      detail: "the connection was lost before the response was complete",
    });
  }
  const { summary, ...rest } = answer;
  if (answer.status === 401) refusals.refused();
  if (answer.status >= 400) return { ...rest, problem: await problemIn(answer) };
  return summary ? { ...rest, document: new RemoteDocument(document, summary) } : rest;
}

async function problemIn(answer: Received): Promise<Problem> {
  const isReadable = answer.body.size <= LARGEST_PROBLEM;
  const text = isReadable ? (answer.text ?? (await answer.body.text())) : "";
  return problemOf({ status: answer.status, statusText: answer.title, text: async () => text });
}

export interface StreamEnd {
  problem?: Problem;
  /** Whether the connection was lost before the last event. */
  isLost?: boolean;
}

/** Follow a stream; `receive` gets events in batches. Resolves with the outcome. */
export async function follow(
  options: CallOptions,
  receive: (items: TimedEvent[]) => void,
  opened: (requestId: string) => void,
): Promise<StreamEnd> {
  let end: StreamEnd | undefined;
  const request = requestOf(options, "text/event-stream; profile=envelope");
  const answer = await followInWorker(request, options.signal, ({ requestId, items = [] }) => {
    if (requestId !== undefined) opened(requestId);
    const isOwn = (event: TimedEvent) => event.type.startsWith("operations.");
    const last = items.find(isOwn);
    if (last) end = last.type === "operations.problem" ? { problem: JSON.parse(last.data) as Problem } : {};
    receive(last ? items.filter((event) => !isOwn(event)) : items);
  });
  if (!("lost" in answer)) {
    if (answer.status === 401) refusals.refused();
    return { problem: await problemIn(answer) };
  }
  if (answer.lost === "before") throw new RequestError(UNREACHABLE);
  return end ?? { isLost: true, problem: { ...UNREACHABLE, executed: "unknown", detail: "the connection was lost" } };
}

function hex(bytes: number): string {
  const random = crypto.getRandomValues(new Uint8Array(bytes));
  return Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newTraceId(): string {
  return hex(16);
}

export function newKey(): string {
  return hex(16);
}

function traceparent(traceId: string): string {
  return `00-${traceId}-${hex(8)}-01`;
}
