/** Bytes and content blocks: images, audio, text, links. Their content is shown, never run. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { LARGE } from "../data/document";
import { ask } from "../data/thread";
import { plural, size } from "../format";
import { fromBase64 } from "../json/text";
import { isObject, type Json, type JsonObject } from "../json/value";
import { Button, CopyButton, download } from "./Button";

const LINES = 32;
const MAGIC: [string, number[], number][] = [
  ["image/png", [0x89, 0x50, 0x4e, 0x47], 0],
  ["image/jpeg", [0xff, 0xd8, 0xff], 0],
  ["image/gif", [0x47, 0x49, 0x46, 0x38], 0],
  ["image/webp", [0x57, 0x45, 0x42, 0x50], 8],
];

/** Detect the type of an image from its first bytes, ignoring the declared type. */
export function imageType(bytes: Uint8Array): string | undefined {
  return MAGIC.find(([, magic, at]) => magic.every((byte, index) => bytes[at + index] === byte))?.[0];
}

function useAddress(blob: Blob | undefined, type: string | undefined): string | undefined {
  const address = useMemo(
    () => (blob && type ? URL.createObjectURL(new Blob([blob], { type })) : undefined),
    [blob, type],
  );
  useEffect(() => () => (address ? URL.revokeObjectURL(address) : undefined), [address]);
  return address;
}

/** Decode base64; large data is decoded in the worker. */
async function decode(base64: string): Promise<Blob> {
  try {
    return await (base64.length > LARGE ? ask<Blob>({ kind: "decode", base64 }) : new Blob([fromBase64(base64)]));
  } catch {
    return new Blob();
  }
}

/** Bytes as an image, an audio player or a dump of their first bytes; `load` is called again when `of` changes. */
export function BytesView(props: { load: () => Promise<Blob>; of: unknown; name: string; media?: string }) {
  const [found, setFound] = useState<{ blob: Blob; head: Uint8Array } | undefined>();
  useEffect(() => {
    let isCurrent = true;
    setFound(undefined);
    void (async () => {
      const blob = await props.load();
      const head = new Uint8Array(await blob.slice(0, LINES * 16).arrayBuffer());
      if (isCurrent) setFound({ blob, head });
    })();
    return () => {
      isCurrent = false;
    };
  }, [props.of]);
  const image = found && imageType(found.head);
  const audio = found && !image && props.media?.startsWith("audio/") ? props.media : undefined;
  const address = useAddress(found?.blob, image ?? audio);
  if (!found) return <div class="blob col" aria-busy="true" />;
  return (
    <div class="blob col">
      <div class="row">
        <span>{image ?? props.media ?? "bytes"}</span>
        <span class="t3 n">{size(found.blob.size)}</span>
        <Button class="right" icon="download" onClick={() => download(props.name, found.blob)}>
          Download
        </Button>
      </div>
      {image && address && <img src={address} alt="Result" />}
      {/* biome-ignore lint/a11y/useMediaCaption: a result has no captions */}
      {audio && address && <audio controls src={address} />}
      {!image && !audio && <pre class="hex">{hexDump(found.head, found.blob.size)}</pre>}
    </div>
  );
}

/** The first bytes of binary data, as hexadecimal digits and as characters. */
export function hexDump(bytes: Uint8Array, total = bytes.length): string {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, LINES * 16); at += 16) {
    const part = [...bytes.subarray(at, at + 16)];
    const hex = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  return lines.join("\n") + (total > LINES * 16 ? `\n… ${size(total - LINES * 16)} more` : "");
}

export const SHOWN = 64 << 10;

/** A text, truncated if long: the browser would take seconds to lay out megabytes. */
export function LongText(props: { text: string; size?: number; title?: string | undefined }) {
  const { text, size: total = text.length } = props;
  return (
    <>
      <pre class="plain" title={props.title}>
        {text.slice(0, SHOWN)}
      </pre>
      {total > SHOWN && <p class="t3">{plural(total - SHOWN, "character")} more: copy or download them.</p>}
    </>
  );
}

/** The blocks of an MCP result, one card each. */
export function Blocks(props: { blocks: Json[] }) {
  return (
    <div class="col">
      {props.blocks.map((block, index) => (
        <div class="card" key={index}>
          <Block block={isObject(block) ? block : {}} index={index} />
        </div>
      ))}
    </div>
  );
}

const text = (value: Json | undefined) => (typeof value === "string" ? value : "");

function Block(props: { block: JsonObject; index: number }) {
  const { block } = props;
  const type = text(block.type);
  const resource = isObject(block.resource) ? block.resource : {};
  const base64 = text(block.data) || text(resource.blob);
  const link = text(block.uri) || text(resource.uri);
  return (
    <>
      <div class="row mb">
        <h3>{type}</h3>
        <span class="t3">{text(block.mimeType) || text(resource.mimeType)}</span>
        {link && (
          <span class="right row">
            <code class="break">{link}</code>
            <CopyButton look="x" label="Copy the link" text={() => link} />
          </span>
        )}
      </div>
      {base64 && (
        <BytesView
          load={() => decode(base64)}
          of={base64}
          name={`block-${props.index}`}
          media={text(block.mimeType) || text(resource.mimeType)}
        />
      )}
      {(block.text !== undefined || resource.text !== undefined) && (
        <LongText text={text(block.text) || text(resource.text)} />
      )}
      {type === "resource_link" && <p>{text(block.name)}</p>}
    </>
  );
}
