/** Preferences of the user: theme, pinned operations, single-letter keys. Stored in the browser, never sent. */

import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";

function stored<T>(key: string, fallback: T) {
  let initial = fallback;
  try {
    const text = localStorage.getItem(`operations.${key}`);
    if (text) initial = JSON.parse(text) as T;
  } catch {
    // Without storage, the fallback is used.
  }
  const value = signal(initial);
  effect(() => {
    try {
      localStorage.setItem(`operations.${key}`, JSON.stringify(value.value));
    } catch {
      // Without storage, the preference lasts as long as the page.
    }
  });
  return value;
}

export const theme = stored<Theme>("theme", "system");
export const pins = stored<string[]>("pins", []);
export const letterKeys = stored("letterKeys", true);
export const codeTab = stored("code", "ops");
export const deadline = stored("deadline", 30);
export const divider = stored("divider", 46);

export function startTheme(): void {
  effect(() => {
    if (theme.value === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme.value;
  });
}

export function togglePin(id: string): void {
  pins.value = pins.value.includes(id) ? pins.value.filter((pin) => pin !== id) : [...pins.value, id];
}
