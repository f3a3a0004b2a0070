/** Announcements for screen readers: polite, or assertive for failures. */

import { signal } from "@preact/signals";

export const polite = signal("");
export const assertive = signal("");

export function announce(text: string): void {
  polite.value = anew(text, polite.peek());
}

export function alertReader(text: string): void {
  assertive.value = anew(text, assertive.peek());
}

/** Return a text that differs from the last one: only a change is read aloud. */
function anew(text: string, last: string): string {
  return text === last ? `${text}\u00a0` : text;
}
