/** Keyboard shortcuts. Those of one character are ignored in inputs and can be disabled. */

import { signal } from "@preact/signals";
import { useLayoutEffect } from "preact/hooks";
import { to } from "./addresses";
import { go } from "./router";
import { letterKeys } from "./state/preferences";

/** The shortcuts of the current screen. */
export interface Shortcuts {
  run?: () => void;
  cancel?: () => void;
  toggleView?: () => void;
  digit?: (digit: number) => void;
  pause?: () => void;
  step?: (by: number) => void;
}

export const helpOpen = signal(false);
const stack: Shortcuts[] = [];

/**
 * The shortcuts of a component, from the moment in which it is shown; they are replaced when `inputs` change. The last
 * component with a shortcut for a key is used.
 */
export function useShortcuts(added: Shortcuts, inputs: unknown[]): void {
  useLayoutEffect(() => {
    stack.push(added);
    return () => {
      stack.splice(stack.indexOf(added), 1);
    };
  }, inputs);
}

function find<K extends keyof Shortcuts>(name: K): Shortcuts[K] | undefined {
  return stack.findLast((each) => each[name])?.[name];
}

export function isTyping(event: KeyboardEvent): boolean {
  const target = event.composedPath()[0];
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
}

const SCREENS: Record<string, () => string> = {
  o: to.operations,
  c: to.calls,
  w: to.workers,
  j: to.jobs,
  m: to.metrics,
};
let wentAt = 0;

function letter(event: KeyboardEvent): boolean {
  const { key } = event;
  if (event.timeStamp - wentAt < 1_000 && SCREENS[key]) {
    wentAt = 0;
    go(SCREENS[key]());
    return true;
  }
  wentAt = key === "g" ? event.timeStamp : 0;
  if (key === "g") return true;
  if (key === "/") openSearch();
  else if (key === "?") helpOpen.value = !helpOpen.value;
  else if (key === "e" && find("toggleView")) find("toggleView")?.();
  else if (/^[1-4]$/.test(key) && find("digit")) find("digit")?.(Number(key));
  else if (key === "[" && find("step")) find("step")?.(-1);
  else if (key === "]" && find("step")) find("step")?.(1);
  else if (key === " " && find("pause") && !(event.target as Element).closest?.("button:not(.ev), a, [role=treeitem]"))
    find("pause")?.();
  else return false;
  return true;
}

/** Focus the search; on other screens, open it first. */
export function openSearch(): void {
  const box = document.querySelector<HTMLInputElement>("#search");
  if (box) {
    box.focus();
    box.select();
  } else {
    go(to.operations());
    requestAnimationFrame(() => document.querySelector<HTMLInputElement>("#search")?.focus());
  }
}

export function startKeyboard(): void {
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]")) return;
    const isCommand = event.ctrlKey || event.metaKey;
    let isTaken = true;
    if (isCommand && event.key === "Enter") find("run")?.();
    else if (isCommand && event.key === ".") find("cancel")?.();
    else if (isCommand && event.key.toLowerCase() === "k") openSearch();
    else if (isCommand || event.altKey || isTyping(event)) isTaken = false;
    else isTaken = letterKeys.value && letter(event);
    if (isTaken) event.preventDefault();
  });
}
