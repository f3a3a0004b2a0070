/** Announcements for screen readers: polite, or assertive for failures. */

import { signal } from "@preact/signals";

export const polite = signal("");
export const assertive = signal("");

export function announce(text: string): void {
  polite.value = text;
}

export function alertReader(text: string): void {
  assertive.value = text;
}
