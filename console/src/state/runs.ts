/** Calls of this page: each operation has a current call; ended calls move to the history. */

import { type Signal, signal } from "@preact/signals";
import { callAddress } from "../addresses";
import { type Answer, call, newKey, newTraceId } from "../api/calls";
import { api, RequestError } from "../api/client";
import type { Difference, Operation, Problem } from "../api/types";
import { type DataDocument, readText } from "../data/document";
import { ENVELOPE_TYPE } from "../data/requests";
import { withoutSecrets } from "../form/defaults";
import { duration } from "../format";
import type { Json, JsonObject } from "../json/value";
import { alertReader, announce } from "./announce";
import { LARGEST_BODY, type PastCall, remember } from "./history";
import { deadline } from "./preferences";
import { can, historyOwner, suspect } from "./session";

export interface Run {
  id: string;
  /** The caller's identity. */
  owner: string;
  operation: Operation;
  input: Json;
  traceId: string;
  startedAt: number;
  state: "running" | "done";
  durationMs?: number;
  outcome?: "ok" | "failed" | "cancelled";
  requestId?: string;
  status?: number;
  statusText?: string;
  problem?: Problem;
  document?: DataDocument;
  meta?: JsonObject;
  /** The unparsed body. */
  body?: Blob;
  bytes?: number;
  /** Differences of the result from its declared schema, as the server reports them. */
  differences?: Difference[];
  abort: () => void;
}

const current = new Map<string, Signal<Run | undefined>>();

export function runOf(operationId: string): Signal<Run | undefined> {
  let found = current.get(operationId);
  if (!found) {
    found = signal<Run | undefined>(undefined);
    current.set(operationId, found);
  }
  return found;
}

/** Call an operation with an input; the result is in its signal. */
export async function start(operation: Operation, input: Json): Promise<void> {
  const target = runOf(operation.id);
  target.peek()?.document?.close();
  const controller = new AbortController();
  const traceId = newTraceId();
  const isMutation = operation.type === "mutation";
  const run: Run = {
    id: newKey(),
    owner: historyOwner(),
    operation,
    input,
    traceId,
    startedAt: Date.now(),
    state: "running",
    abort: () => {
      controller.abort();
      // A mutation with an idempotency key outlives its connection: cancel it by id.
      if (isMutation) void cancelTrace(traceId);
    },
  };
  target.value = run;
  const began = performance.now();
  let ended: Partial<Run>;
  try {
    const answer = await call({
      address: callAddress(operation.http?.path ?? ""),
      input,
      deadlineSeconds: deadline.peek(),
      idempotencyKey: isMutation ? newKey() : undefined,
      traceId,
      signal: controller.signal,
    });
    ended = read(answer);
  } catch (error) {
    ended = failure(error, operation);
  }
  const done: Run = { ...run, state: "done", durationMs: performance.now() - began, ...ended };
  if (target.peek()?.id === run.id) target.value = done;
  say(done);
  const differences = await differencesOf(done);
  if (differences.length > 0) {
    done.differences = differences;
    if (target.peek()?.id === run.id) target.value = { ...done };
  }
  await remember(await pastCall(done));
}

/** Fetch the changes of the server's normalisation; none without the right to read calls. */
async function differencesOf(run: Run): Promise<Difference[]> {
  if (run.problem || !run.requestId || !can("calls")) return [];
  try {
    return (await api.call(run.requestId)).differences ?? [];
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    return [];
  }
}

async function cancelTrace(traceId: string): Promise<void> {
  try {
    const { calls } = await api.calls({ trace: traceId, outcome: "running", roots: 1 });
    for (const span of calls) await api.cancel(span.requestId);
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
  }
}

function read(answer: Answer): Partial<Run> {
  const { status, requestId, problem, body } = answer;
  const common = { requestId, status, statusText: answer.title, bytes: body.size, body };
  if (problem) return { ...common, outcome: "failed", problem };
  const isEnvelope = answer.contentType.startsWith(ENVELOPE_TYPE);
  const document = answer.text === undefined ? answer.document : readText(answer.text, isEnvelope);
  if (!document) return { ...common, outcome: "ok" };
  const meta = document.summary.meta ?? {};
  return { ...common, outcome: meta.isError === true ? "failed" : "ok", document, meta };
}

function failure(error: unknown, operation: Operation): Partial<Run> {
  if ((error as Error).name === "AbortError") {
    const problem = { status: 0, code: "ABORTED", detail: `${operation.id}: cancelled here`, executed: "unknown" };
    return { outcome: "cancelled", status: 0, problem };
  }
  if (!(error instanceof RequestError)) throw error;
  suspect();
  const executed = error.problem.executed ?? "unknown";
  return { outcome: "failed", status: 0, problem: { ...error.problem, executed } };
}

/** Return the text of the status line: 201 Created, or EXECUTION_ERROR. */
export function statusOf(run: Run): string {
  if (run.state === "running") return "Running";
  if (run.problem) return run.problem.code;
  const meta = run.meta ?? {};
  if (meta.isError === true) return "Tool error";
  if (meta.source === "http" && meta.statusCode !== undefined)
    return `${String(meta.statusCode)} ${reason(Number(meta.statusCode))}`.trim();
  return "OK";
}

const REASONS: Record<number, string> = {
  200: "OK",
  201: "Created",
  202: "Accepted",
  203: "Non-Authoritative",
  204: "No Content",
  205: "Reset Content",
  206: "Partial Content",
  207: "Multi-Status",
  301: "Moved Permanently",
  302: "Found",
  304: "Not Modified",
};

function reason(status: number): string {
  return REASONS[status] ?? "";
}

/** Return the label of a history chip: 201, 404, ok, cancelled. */
function labelOf(run: Run): string {
  if (run.outcome === "cancelled") return "cancelled";
  if (run.problem) {
    const upstream = run.problem.details?.statusCode;
    return String(upstream ?? (run.problem.status || run.problem.code));
  }
  if (run.meta?.isError === true) return "error";
  return run.meta?.source === "http" ? String(run.meta.statusCode) : "ok";
}

function say(run: Run): void {
  const text = `${statusOf(run)}, ${duration(run.durationMs ?? 0)}`;
  if (run.outcome === "ok") announce(text);
  else alertReader(run.problem ? `${text}: ${run.problem.detail}` : text);
}

async function pastCall(run: Run): Promise<PastCall> {
  const small = run.body && run.body.size <= LARGEST_BODY ? await run.body.text() : undefined;
  return {
    id: run.requestId || run.id,
    owner: run.owner,
    operationId: run.operation.id,
    at: run.startedAt,
    durationMs: run.durationMs ?? 0,
    traceId: run.traceId,
    input: withoutSecrets(run.operation.inputSchema, run.input),
    outcome: run.outcome ?? "failed",
    status: run.status ?? 0,
    label: labelOf(run),
    bytes: run.bytes ?? 0,
    ...(run.problem ? { problem: run.problem } : {}),
    ...(small !== undefined ? { body: small } : {}),
    ...(run.differences ? { differences: run.differences } : {}),
  };
}

/** Show a call of the history without repeating it. */
export function showPast(operation: Operation, past: PastCall): void {
  const run: Run = {
    id: past.id,
    owner: past.owner,
    operation,
    input: past.input,
    traceId: past.traceId,
    startedAt: past.at,
    state: "done",
    durationMs: past.durationMs,
    outcome: past.outcome,
    requestId: past.id,
    status: past.status,
    bytes: past.bytes,
    abort: () => {},
    ...(past.problem ? { problem: past.problem } : {}),
    ...(past.differences ? { differences: past.differences } : {}),
  };
  if (past.body !== undefined) {
    run.body = new Blob([past.body]);
    if (!past.problem) {
      run.document = readText(past.body, true);
      run.meta = run.document.summary.meta ?? {};
    }
  }
  runOf(operation.id).value = run;
}
