/** Addresses of the page, its API and the operations, derived from the URL of the page's script: any mount path works. */

function root(): URL {
  const script = new URL(import.meta.url);
  const end = script.pathname.indexOf("/console/");
  return new URL(end < 0 ? "/" : script.pathname.slice(0, end + 1), location.href);
}

export const ROOT = root();
/** The path of the page, with a slash at its end: /console/. */
export const BASE = `${ROOT.pathname}console/`;
export const API = `${BASE}api/`;

/** The address of an operation, from the path that the server gave for it. */
export function callAddress(path: string): string {
  return ROOT.pathname + path.replace(/^\//, "");
}

export const to = {
  operations: (query: Record<string, string | undefined> = {}) => BASE + search(query),
  operation: (id: string, query: Record<string, string | undefined> = {}) =>
    `${BASE}op/${id.split("/").map(encodeURIComponent).join("/")}${search(query)}`,
  calls: (query: Record<string, string | undefined> = {}) => `${BASE}calls${search(query)}`,
  call: (requestId: string) => `${BASE}calls/${encodeURIComponent(requestId)}`,
  compare: (a: string, b: string) => `${BASE}compare/${encodeURIComponent(a)}/${encodeURIComponent(b)}`,
  trace: (traceId: string, span?: string) => `${BASE}traces/${encodeURIComponent(traceId)}${search({ span })}`,
  workers: () => `${BASE}workers`,
  jobs: () => `${BASE}jobs`,
  job: (id: string) => `${BASE}jobs/${encodeURIComponent(id)}`,
  metrics: (query: Record<string, string | undefined> = {}) => `${BASE}metrics${search(query)}`,
  audit: () => `${BASE}audit`,
};

function search(query: Record<string, string | undefined>): string {
  const given = Object.entries(query).filter((entry): entry is [string, string] => Boolean(entry[1]));
  return given.length > 0 ? `?${new URLSearchParams(given)}` : "";
}
