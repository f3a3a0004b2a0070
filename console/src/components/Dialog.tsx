/** A modal dialog; the browser keeps the focus inside and returns it. */

import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";

export function Dialog(props: { title: string; class?: string; close: () => void; children: ComponentChildren }) {
  const box = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    box.current?.showModal();
    return () => before?.focus?.();
  }, []);
  return (
    <dialog
      ref={box}
      class={props.class}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        props.close();
      }}
      onClick={(event) => event.target === box.current && props.close()}
      onKeyDown={(event) => event.key !== "Escape" && event.stopPropagation()}
    >
      <h2 id={id}>{props.title}</h2>
      {props.children}
    </dialog>
  );
}
