/** Buttons: plain, primary (p), bare (x), dangerous (d); an icon alone has a label. */

import type { ButtonHTMLAttributes, ComponentChildren } from "preact";
import { announce } from "../state/announce";
import { Icon } from "./Icon";

interface ButtonProps extends Omit<ButtonHTMLAttributes, "icon" | "label"> {
  look?: "p" | "x" | "d" | undefined;
  icon?: string | undefined;
  /** The label of a button without text. */
  label?: string | undefined;
  disabled?: boolean | undefined;
  children?: ComponentChildren;
}

export function Button({ look, icon, label, class: more, children, ...rest }: ButtonProps) {
  const classes = ["btn", look, more].filter(Boolean).join(" ");
  return (
    <button type="button" class={classes} aria-label={label} title={label} {...rest}>
      {icon && <Icon name={icon} small />}
      {children}
    </button>
  );
}

/** A button that copies a string and confirms it. */
export function CopyButton(props: {
  text: () => string | Promise<string>;
  label: string;
  look?: "x" | undefined;
  icon?: string;
  disabled?: boolean;
  children?: ComponentChildren;
}) {
  const copy = async (event: Event) => {
    const button = event.currentTarget as HTMLElement;
    const given = await props.text();
    await copyText(given);
    button.classList.add("on");
    setTimeout(() => button.classList.remove("on"), 1200);
  };
  return (
    <Button
      look={props.look}
      icon={props.icon ?? "copy"}
      label={props.children ? undefined : props.label}
      disabled={props.disabled}
      onClick={copy}
    >
      {props.children}
    </Button>
  );
}

/** Copy a string; pages without HTTPS have no clipboard API. */
export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard) await navigator.clipboard.writeText(text).catch(() => copyBySelection(text));
  else copyBySelection(text);
  announce("Copied");
}

function copyBySelection(text: string): void {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "hidden";
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

export function download(name: string, content: Blob): void {
  // A type that no browser shows in the tab: the file is saved, never opened.
  const address = URL.createObjectURL(new Blob([content], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
