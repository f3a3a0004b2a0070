/** Tabs and segmented controls, by the patterns of the ARIA guide: arrows move, one stop in the tab order. */

import type { ComponentChildren, HTMLAttributes } from "preact";

export interface Choice<T extends string> {
  id: T;
  label: ComponentChildren;
  count?: number | string | undefined;
  look?: string;
}

function move(event: KeyboardEvent): void {
  const step =
    event.key === "ArrowRight" || event.key === "ArrowDown"
      ? 1
      : event.key === "ArrowLeft" || event.key === "ArrowUp"
        ? -1
        : 0;
  if (!step) return;
  const all = [...(event.currentTarget as HTMLElement).querySelectorAll<HTMLButtonElement>("button")];
  const at = all.indexOf(document.activeElement as HTMLButtonElement);
  const next = all[(at + step + all.length) % all.length];
  if (at < 0 || !next) return;
  event.preventDefault();
  event.stopPropagation();
  next.focus();
  next.click();
}

export function Tabs<T extends string>(props: {
  tabs: Choice<T>[];
  value: T;
  label: string;
  class?: string;
  choose: (id: T) => void;
}) {
  return (
    <div class={`tabs ${props.class ?? ""}`} role="tablist" aria-label={props.label} onKeyDown={move}>
      {props.tabs.map(({ id, label, count, look }) => (
        <button
          key={id}
          type="button"
          role="tab"
          data-tab={id}
          aria-selected={id === props.value}
          tabIndex={id === props.value ? 0 : -1}
          onClick={() => props.choose(id)}
        >
          {label}
          {count !== undefined && <span class={`c ${look ?? ""}`}>{count}</span>}
        </button>
      ))}
    </div>
  );
}

export function Segmented<T extends string>(props: {
  choices: Choice<T>[];
  value: T | undefined;
  label: string;
  class?: string;
  choose: (id: T) => void;
  /** Attributes that join the control of a field to its messages. */
  field?: HTMLAttributes<HTMLSpanElement>;
}) {
  const none = !props.choices.some((choice) => choice.id === props.value);
  return (
    <span
      class={`seg ${props.class ?? ""}`}
      role="radiogroup"
      aria-label={props.label}
      onKeyDown={move}
      {...props.field}
      tabIndex={props.field && -1}
    >
      {props.choices.map(({ id, label }, index) => (
        <button
          key={id}
          type="button"
          role="radio"
          aria-checked={id === props.value}
          tabIndex={id === props.value || (none && index === 0) ? 0 : -1}
          onClick={() => props.choose(id)}
        >
          {label}
        </button>
      ))}
    </span>
  );
}
