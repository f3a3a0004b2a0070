/** A button that opens a small panel; Escape, a click elsewhere or a choice closes it and the focus returns. */

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

export function Menu(props: {
  button: ComponentChildren;
  label?: string | undefined;
  class?: string;
  look?: string | undefined;
  children: (close: () => void) => ComponentChildren;
}) {
  const [isOpen, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const close = () => {
    setOpen(false);
    box.current?.querySelector("button")?.focus();
  };
  useEffect(() => {
    if (!isOpen) return;
    const outside = (event: Event) => {
      if (!box.current?.contains(event.target as Node)) setOpen(false);
    };
    addEventListener("pointerdown", outside);
    box.current?.querySelector<HTMLElement>(".pop input, .pop button")?.focus();
    return () => removeEventListener("pointerdown", outside);
  }, [isOpen]);
  const keys = (event: KeyboardEvent) => {
    if (!isOpen) return;
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const all = [...(box.current?.querySelectorAll<HTMLElement>(".pop button, .pop input") ?? [])];
      const at = all.indexOf(document.activeElement as HTMLElement);
      all[(at + (event.key === "ArrowDown" ? 1 : -1) + all.length) % all.length]?.focus();
      event.preventDefault();
    }
  };
  return (
    <div class={`menu ${props.class ?? ""}`} ref={box} onKeyDown={keys}>
      <button
        type="button"
        class={props.look ?? "btn x"}
        aria-expanded={isOpen}
        aria-label={props.label}
        onClick={() => setOpen(!isOpen)}
      >
        {props.button}
      </button>
      {isOpen && <div class="pop fade">{props.children(close)}</div>}
    </div>
  );
}
