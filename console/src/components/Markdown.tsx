/** A subset of Markdown, built from nodes: paragraphs, lists, code, emphasis, links. It never produces HTML strings. */

import type { ComponentChildren } from "preact";

const INLINE = /(`[^`\n]+`)|(\*\*[^*\n]+\*\*)|(\[[^\]\n]+\]\([^)\s]+\))/g;

function inline(text: string): ComponentChildren[] {
  return text.split(INLINE).map((piece, index) => {
    if (!piece) return null;
    if (piece.startsWith("`") && piece.endsWith("`") && piece.length > 2)
      return <code key={index}>{piece.slice(1, -1)}</code>;
    if (piece.startsWith("**") && piece.endsWith("**") && piece.length > 4)
      return <b key={index}>{piece.slice(2, -2)}</b>;
    const link = /^\[([^\]]+)\]\(([^)\s]+)\)$/.exec(piece);
    if (link) return <Link key={index} label={link[1] ?? ""} address={link[2] ?? ""} />;
    return piece;
  });
}

function Link(props: { label: string; address: string }) {
  let address: URL | undefined;
  try {
    address = new URL(props.address);
  } catch {
    return <>{props.label}</>;
  }
  if (address.protocol !== "https:" && address.protocol !== "http:") return <>{props.label}</>;
  return (
    <a class="acc" href={address.href} target="_blank" rel="noreferrer noopener">
      {props.label}
    </a>
  );
}

export function Markdown(props: { text: string }) {
  const blocks = props.text.replaceAll("\r\n", "\n").split(/\n{2,}/);
  return (
    <div class="md">
      {blocks.map((block, index) => (
        <Block key={index} text={block} />
      ))}
    </div>
  );
}

function Block(props: { text: string }) {
  const text = props.text.trim();
  if (text.startsWith("```")) return <pre>{text.replace(/^```[^\n]*\n?/, "").replace(/\n?```$/, "")}</pre>;
  const heading = /^#{1,6}\s+(.*)$/s.exec(text);
  if (heading) return <h3>{inline(heading[1] ?? "")}</h3>;
  const lines = text.split("\n");
  if (lines.every((line) => /^\s*([-*]|\d+\.)\s/.test(line))) {
    return (
      <ul>
        {lines.map((line, index) => (
          <li key={index}>{inline(line.replace(/^\s*([-*]|\d+\.)\s+/, ""))}</li>
        ))}
      </ul>
    );
  }
  return <p>{inline(text)}</p>;
}

/** The first sentence or two of a description, without markup. */
export function plainText(text: string): string {
  return text
    .replaceAll(/\[([^\]]+)\]\([^)]+\)/g, "$1")
    .replaceAll(/(^|\s)_([^_]+)_(?=\s|$)/g, "$1$2")
    .replaceAll(/[`*#]/g, "")
    .replaceAll(/<[^>]+>/g, "")
    .trim();
}
