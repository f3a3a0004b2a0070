/** Who is signed in, what the server has, and whether it can be reached. */

import { batch, computed, signal } from "@preact/signals";
import { to } from "../addresses";
import { api, forgetCatalogue, RequestError, refusals, setToken, token } from "../api/client";
import type { Catalogue, CatalogueEntry, Feature, Problem, Session, Source } from "../api/types";
import { endHistory } from "./history";

export const session = signal<Session | undefined>(undefined);
export const catalogue = signal<Catalogue | undefined>(undefined);
export const catalogueProblem = signal<Problem | undefined>(undefined);
/** Whether the sign-in dialog is open, and why the last token was refused. */
export const signIn = signal<{ open: boolean; message?: string }>({ open: false });
/** The connection; `retryAt` says when it is tried again. */
export const connection = signal<{
  state: "connecting" | "connected" | "lost";
  latencyMs?: number;
  retryAt?: number;
  lostAt?: number;
}>({
  state: "connecting",
});
/** Grows whenever the connection came back: screens fetch again what they show. */
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

const PING_MS = 20_000;
const LONGEST_MS = 10_000;
let timer: ReturnType<typeof setTimeout> | undefined;
let failures = 0;

function later(milliseconds: number): void {
  clearTimeout(timer);
  timer = setTimeout(() => void connect(), milliseconds);
}

/** Ask the server who we are; this also tells whether it is there, and whether its catalogue is another. */
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

/** A request found no server: find out at once whether it is gone. */
export function suspect(): void {
  if (connection.value.state !== "lost") void connect();
}

let loading: Promise<void> | undefined;

/** Fetch the catalogue, once at a time. */
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

/** Replace one source after the feed said that it changed. */
export function changeSource(changed: Source): void {
  const now = catalogue.value;
  if (!now) return;
  const others = now.sources.filter((source) => source.name !== changed.name);
  const all = [...others, changed].sort((left, right) => left.name.localeCompare(right.name));
  catalogue.value = { ...now, sources: all };
}

export async function useToken(value: string): Promise<boolean> {
  const before = session.peek();
  setToken(value);
  forgetCatalogue();
  try {
    const read = await api.session();
    if (before && before.identity?.id !== read.identity?.id) {
      location.reload(); // forms, results and streams are those of another identity
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
    setToken("");
    signIn.value = {
      open: true,
      message: error.status === 401 ? "The server does not accept this token." : error.message,
    };
    return false;
  }
}

/** Sign out. Loading the page again ends what runs and leaves nothing of this identity in memory. */
export async function signOut(): Promise<void> {
  await endHistory();
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

/** The identity and server that history belongs to. */
export function historyOwner(): string {
  return `${location.host} ${session.value?.identity?.id ?? ""}`;
}
