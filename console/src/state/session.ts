/** The session: identity, the server's features and the connection. */

import { batch, computed, signal } from "@preact/signals";
import { to } from "../addresses";
import { api, forgetCatalogue, RequestError, refusals, setToken, token } from "../api/client";
import type { Catalogue, CatalogueEntry, Feature, Problem, Session, Source } from "../api/types";
import { endHistory } from "./history";
import { pins } from "./preferences";

export const session = signal<Session | undefined>(undefined);
export const catalogue = signal<Catalogue | undefined>(undefined);
export const catalogueProblem = signal<Problem | undefined>(undefined);
/** Whether the sign-in dialog is open, and the reason why the last token was rejected. */
export const signIn = signal<{ open: boolean; message?: string }>({ open: false });
/** The connection; `retryAt` is the time of the next attempt. */
export const connection = signal<{
  state: "connecting" | "connected" | "lost";
  latencyMs?: number;
  retryAt?: number;
  lostAt?: number;
}>({
  state: "connecting",
});
/** Counter of reconnections: screens refetch their data when it changes. */
export const recoveries = signal(0);

export const isLost = computed(() => connection.value.state === "lost");
export const entries = computed(() => new Map(catalogue.value?.operations.map((entry) => [entry.id, entry])));
export const sources = computed<Source[]>(() => catalogue.value?.sources ?? []);

export function can(feature: Feature): boolean {
  return session.value?.features.includes(feature) ?? false;
}

export function entryOf(id: string): CatalogueEntry | undefined {
  return entries.value.get(id);
}

/** A command that calls an operation of this server: one that needs no input if there is one. */
export function exampleCall(command = "call", id?: string): string {
  const all = catalogue.value?.operations ?? [];
  const found = id ?? (all.find((entry) => !entry.fields?.length) ?? all[0])?.id;
  return `ops ${command} ${found ?? "NAMESPACE.NAME"}`;
}

const PING_MS = 20_000;
const LONGEST_MS = 10_000;
let timer: ReturnType<typeof setTimeout> | undefined;
let failures = 0;

function later(milliseconds: number): void {
  clearTimeout(timer);
  timer = setTimeout(() => void connect(), milliseconds);
}

/** Fetch the session: identity, whether the server is reachable, and whether its catalogue changed. */
export async function connect(): Promise<void> {
  const began = performance.now();
  try {
    const read = await api.session();
    const wasLost = failures > 0;
    failures = 0;
    batch(() => {
      session.value = read;
      connection.value = { state: "connected", latencyMs: performance.now() - began };
      if (wasLost) recoveries.value++;
    });
    if (read.catalogueVersion !== catalogue.value?.version) await loadCatalogue();
    later(PING_MS);
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    if (error.status === 401) {
      connection.value = { state: "connected", latencyMs: performance.now() - began };
      return;
    }
    lose();
  }
}

function lose(): void {
  const wait = Math.min(LONGEST_MS, 1_000 * 2 ** failures);
  failures++;
  const lostAt = connection.value.lostAt ?? Date.now();
  connection.value = { state: "lost", retryAt: Date.now() + wait, lostAt };
  later(wait);
}

/** Check immediately whether the server is reachable, after a request without a response. */
export function suspect(): void {
  if (connection.value.state !== "lost") void connect();
}

let loading: Promise<void> | undefined;

/** Fetch the catalogue, one request at a time. */
export function loadCatalogue(): Promise<void> {
  loading ??= fetchCatalogue().finally(() => {
    loading = undefined;
  });
  return loading;
}

async function fetchCatalogue(): Promise<void> {
  try {
    const read = await api.catalogue();
    batch(() => {
      catalogue.value = read;
      catalogueProblem.value = undefined;
    });
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    if (error.status !== 401) catalogueProblem.value = error.problem;
  }
}

/** Replace one source after the feed reported a change. */
export function changeSource(changed: Source): void {
  const now = catalogue.value;
  if (!now) return;
  const others = now.sources.filter((source) => source.name !== changed.name);
  const all = [...others, changed].sort((left, right) => left.name.localeCompare(right.name));
  catalogue.value = { ...now, sources: all };
}

export async function useToken(value: string): Promise<boolean> {
  const before = session.peek();
  const last = token.peek();
  setToken(value);
  forgetCatalogue();
  try {
    const read = await api.session();
    if (before && before.identity?.id !== read.identity?.id) {
      location.reload(); // forms, results and streams belong to another identity
      return true;
    }
    batch(() => {
      session.value = read;
      catalogue.value = undefined;
      signIn.value = { open: false };
    });
    await loadCatalogue();
    later(PING_MS);
    recoveries.value++;
    return true;
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    setToken(last);
    signIn.value = {
      open: true,
      message: error.status === 401 ? "The server does not accept this token." : error.message,
    };
    return false;
  }
}

/** Sign out. Reloading the page ends running calls and clears this identity from memory. */
export async function signOut(): Promise<void> {
  await endHistory();
  pins.value = [];
  setToken("");
  location.assign(to.operations());
}

export function startSession(): void {
  refusals.refused = () => {
    if (signIn.value.open) return;
    signIn.value = token.value ? { open: true, message: "The token is no longer accepted." } : { open: true };
  };
  void connect();
}

/** The identity and server of the history. */
export function historyOwner(): string {
  return `${location.host} ${session.value?.identity?.id ?? ""}`;
}
