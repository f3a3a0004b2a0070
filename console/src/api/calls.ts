/** Calls of operations over HTTP: one response, or a stream of events. Aborting a request cancels its call. */

import { parseJson, writeJson } from "../json/text";
import type { Json } from "../json/value";
import { headers, problemOf, RequestError, refusals, send, UNREACHABLE } from "./client";
import { readEvents } from "./sse";
import type { Problem } from "./types";

export const ENVELOPE_TYPE = "application/vnd.operations.envelope+json";
export const INPUT_TYPE = "application/vnd.operations+json";

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

/** The response of a call, with its unparsed body. */
export interface Answer {
  status: number;
  title: string;
  requestId: string;
  body: ArrayBuffer;
  contentType: string;
  problem?: Problem;
}

function callHeaders(options: CallOptions, accept: string): Headers {
  const given = headers({ Accept: accept, "Content-Type": INPUT_TYPE, traceparent: traceparent(options.traceId) });
  if (options.deadlineSeconds !== undefined) given.set("Operations-Timeout", String(options.deadlineSeconds));
  if (options.idempotencyKey) given.set("Idempotency-Key", options.idempotencyKey);
  if (options.lastEventId) given.set("Last-Event-ID", options.lastEventId);
  return given;
}

/** Call an operation. Errors are returned as problems; only an aborted request raises. */
export async function call(options: CallOptions): Promise<Answer> {
  const response = await send(options.address, {
    method: "POST",
    headers: callHeaders(options, ENVELOPE_TYPE),
    body: writeJson(options.input),
    signal: options.signal,
  });
  let body: ArrayBuffer;
  try {
    body = await response.arrayBuffer();
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    throw new RequestError({
      ...UNREACHABLE,
      executed: "unknown",
      detail: "the connection was lost during the answer",
    });
  }
  const answer: Answer = {
    status: response.status,
    title: response.statusText,
    requestId: response.headers.get("Operations-Request-Id") ?? "",
    contentType: response.headers.get("Content-Type") ?? "",
    body,
  };
  if (response.status === 401) refusals.refused();
  if (!response.ok) answer.problem = readProblem(answer);
  return answer;
}

function readProblem(answer: Answer): Problem {
  const fallback: Problem = {
    status: answer.status,
    code: "UNAVAILABLE",
    detail: `the server answered ${answer.status}`,
  };
  try {
    const read = parseJson(new TextDecoder().decode(answer.body)) as unknown as Problem;
    return { ...fallback, ...read, status: answer.status };
  } catch {
    return fallback;
  }
}

export interface StreamItem {
  type: string;
  id: string;
  data: string;
}

export interface StreamEnd {
  problem?: Problem;
  /** Whether the connection was lost before the last event. */
  isLost?: boolean;
}

/** Follow a stream; `receive` gets the events of each chunk. Resolves with the outcome. */
export async function follow(
  options: CallOptions,
  receive: (items: StreamItem[], bytes: number) => void,
  opened: (requestId: string) => void,
): Promise<StreamEnd> {
  const response = await send(options.address, {
    method: "POST",
    headers: callHeaders(options, "text/event-stream; profile=envelope"),
    body: writeJson(options.input),
    signal: options.signal,
  });
  if (!response.ok || !response.body) {
    if (response.status === 401) refusals.refused();
    return { problem: await problemOf(response) };
  }
  opened(response.headers.get("Operations-Request-Id") ?? "");
  let end: StreamEnd | undefined;
  try {
    await readEvents(response.body, (events, bytes) => {
      const items = events.filter((event) => !event.type.startsWith("operations."));
      const last = events.find((event) => event.type.startsWith("operations."));
      if (items.length > 0) receive(items, bytes);
      if (last) end = last.type === "operations.problem" ? { problem: JSON.parse(last.data) as Problem } : {};
    });
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
  }
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
