/** The address bar as a signal: the current screen and its parameters. */

import { computed, signal } from "@preact/signals";
import { BASE } from "./addresses";

export interface Route {
  screen: string;
  /** The path after the screen's name. */
  rest: string;
  query: URLSearchParams;
  hash: string;
}

const address = signal(location.href);

export const route = computed<Route>(() => {
  const url = new URL(address.value);
  const path = url.pathname.startsWith(BASE) ? url.pathname.slice(BASE.length) : "";
  const slash = path.indexOf("/");
  const screen = slash < 0 ? path : path.slice(0, slash);
  const rest = slash < 0 ? "" : path.slice(slash + 1);
  return { screen: screen || "operations", rest: safeDecode(rest), query: url.searchParams, hash: url.hash };
});

function safeDecode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function go(path: string, options: { replace?: boolean } = {}): void {
  if (options.replace) history.replaceState(null, "", path);
  else history.pushState(null, "", path);
  address.value = location.href;
}

/** Change parameters of the address in place; undefined removes one. */
export function setQuery(changes: Record<string, string | undefined>, options: { push?: boolean } = {}): void {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(changes)) {
    if (value) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
  }
  go(url.pathname + url.search + url.hash, { replace: !options.push });
}

/** Handle the browser's back and forward buttons, and internal links without reloading. */
export function startRouter(): void {
  addEventListener("popstate", () => {
    address.value = location.href;
  });
  addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
    const link = (event.target as Element | null)?.closest?.("a");
    if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
    if (!link.pathname.startsWith(BASE)) return;
    event.preventDefault();
    go(link.pathname + link.search + link.hash);
  });
}
