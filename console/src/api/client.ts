/** Requests to the console's own API. They carry the session's token, follow no redirects and send no cookies. */

import { signal } from "@preact/signals";
import { API } from "../addresses";
import { parseJson } from "../json/text";
import type { Json } from "../json/value";
import type { AuditEntry, Catalogue, Job, Metrics, Operation, Problem, Session, Span, Worker } from "./types";

const KEY = "operations.token";

/** The token, for as long as the tab is open. */
export const token = signal<string>(readToken());

function readToken(): string {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

export function setToken(value: string): void {
  token.value = value;
  try {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch {
    // Without storage, the token lasts as long as the page.
  }
}

/** A failed request, with the server's problem, or without a response (`status` is 0). */
export class RequestError extends Error {
  constructor(readonly problem: Problem) {
    super(problem.detail);
  }

  get status(): number {
    return this.problem.status;
  }
}

export function headers(more: Record<string, string> = {}): Headers {
  const given = new Headers(more);
  if (token.value) given.set("Authorization", `Bearer ${token.value}`);
  return given;
}

export const UNREACHABLE: Problem = {
  status: 0,
  code: "UNAVAILABLE",
  title: "No connection",
  detail: "the server cannot be reached",
};

/** Fetch with the session's token; raises RequestError only without a response. */
export async function send(address: string, init: RequestInit = {}): Promise<Response> {
  try {
    return await fetch(address, { credentials: "omit", redirect: "error", referrerPolicy: "no-referrer", ...init });
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    throw new RequestError(UNREACHABLE);
  }
}

/** Read the problem of a response without success. */
export async function problemOf(response: Pick<Response, "status" | "statusText" | "text">): Promise<Problem> {
  const fallback: Problem = {
    status: response.status,
    code: response.status === 401 ? "ACCESS_DENIED" : "UNAVAILABLE",
    title: response.statusText,
    detail: `the server responded with ${response.status}`,
  };
  try {
    const read = parseJson(await response.text()) as unknown as Partial<Problem>;
    return { ...fallback, ...read, status: response.status };
  } catch {
    return fallback;
  }
}

/** Called for every 401, to open the sign-in dialog. */
export const refusals: { refused: () => void } = { refused: () => {} };

/** Send a request to the API and parse plain numbers; `read` keeps the digits of an operation's values. */
async function ask<T>(
  path: string,
  init: RequestInit = {},
  read: (text: string) => unknown = (text) => JSON.parse(text),
): Promise<T> {
  const response = await send(API + path, { ...init, headers: headers({ Accept: "application/json" }) });
  if (!response.ok) {
    if (response.status === 401) refusals.refused();
    throw new RequestError(await problemOf(response));
  }
  return read(await response.text()) as T;
}

/** Fetch a call: times are plain numbers, input and output keep every digit. */
function readCall(text: string): Span {
  const { input, output } = parseJson(text) as unknown as Span;
  return {
    ...(JSON.parse(text) as Span),
    ...(input === undefined ? {} : { input }),
    ...(output === undefined ? {} : { output }),
  };
}

type Query = Record<string, string | number | undefined>;

function search(query: Query): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  return given.length > 0 ? `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}` : "";
}

function idPath(id: string): string {
  return id.split("/").map(encodeURIComponent).join("/");
}

let known: { tag: string; catalogue: Catalogue } | undefined;

/** Fetch the catalogue; an unchanged one is not sent again. */
async function catalogue(): Promise<Catalogue> {
  const given = headers({ Accept: "application/json" });
  if (known) given.set("If-None-Match", known.tag);
  const response = await send(`${API}catalogue`, { headers: given });
  if (response.status === 304 && known) return known.catalogue;
  if (!response.ok) {
    if (response.status === 401) refusals.refused();
    throw new RequestError(await problemOf(response));
  }
  const read = (await response.json()) as Catalogue;
  known = { tag: response.headers.get("ETag") ?? "", catalogue: read };
  return read;
}

export function forgetCatalogue(): void {
  known = undefined;
}

export const api = {
  session: () => ask<Session>("session"),
  catalogue,
  operation: (id: string) => ask<Operation>(`operations/${idPath(id)}`, {}, parseJson),
  calls: (query: Query) => ask<{ calls: Span[]; next?: string }>(`calls${search(query)}`),
  call: (id: string) => ask<Span>(`calls/${encodeURIComponent(id)}`, {}, readCall),
  cancel: (id: string) => ask<Json>(`calls/${encodeURIComponent(id)}`, { method: "DELETE" }),
  trace: (id: string) =>
    ask<{ traceId: string; spans: Span[]; truncated?: boolean }>(`traces/${encodeURIComponent(id)}`),
  workers: () => ask<{ workers: Worker[] }>("workers"),
  metrics: (query: Query) => ask<Metrics>(`metrics${search(query)}`),
  jobs: () => ask<{ jobs: Job[] }>("jobs"),
  changeJob: (id: string, action: "retry" | "cancel") =>
    ask<Json>(`jobs/${encodeURIComponent(id)}/${action}`, { method: "POST" }),
  audit: (query: Query) => ask<{ entries: AuditEntry[]; next?: string }>(`audit${search(query)}`),
};

/** Fetch a call; null if it is unknown or not visible. */
export async function fetchCall(id: string): Promise<Span | null> {
  try {
    return await api.call(id);
  } catch (error) {
    if (error instanceof RequestError && error.status === 404) return null;
    throw error;
  }
}
