/** Bytes and content blocks: images, audio, text, links. Their content is shown, never run. */

import { useEffect, useMemo } from "preact/hooks";
import { size } from "../format";
import { fromBase64 } from "../json/text";
import { isObject, type Json, type JsonObject } from "../json/value";
import { Button, CopyButton, download } from "./Button";

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

function useAddress(bytes: Uint8Array<ArrayBuffer>, type: string | undefined): string | undefined {
  const address = useMemo(() => (type ? URL.createObjectURL(new Blob([bytes], { type })) : undefined), [bytes, type]);
  useEffect(() => () => (address ? URL.revokeObjectURL(address) : undefined), [address]);
  return address;
}

export function BytesView(props: { base64: string; name: string; media?: string }) {
  const bytes = useMemo(() => read(props.base64), [props.base64]);
  const image = imageType(bytes);
  const audio = !image && props.media?.startsWith("audio/") ? props.media : undefined;
  const address = useAddress(bytes, image ?? audio);
  return (
    <div class="blob col">
      <div class="row">
        <span>{image ?? props.media ?? "bytes"}</span>
        <span class="t3 n">{size(bytes.length)}</span>
        <Button class="right" icon="download" onClick={() => download(props.name, bytes)}>
          Download
        </Button>
      </div>
      {image && address && <img src={address} alt="Result" />}
      {/* biome-ignore lint/a11y/useMediaCaption: a result has no captions */}
      {audio && address && <audio controls src={address} />}
      {!image && !audio && <pre class="hex">{hexDump(bytes)}</pre>}
    </div>
  );
}

function read(base64: string): Uint8Array<ArrayBuffer> {
  try {
    return fromBase64(base64);
  } catch {
    return new Uint8Array();
  }
}

const LINES = 32;

export function hexDump(bytes: Uint8Array): string {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, LINES * 16); at += 16) {
    const part = [...bytes.subarray(at, at + 16)];
    const hex = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  return lines.join("\n") + (bytes.length > LINES * 16 ? `\n… ${size(bytes.length - LINES * 16)} more` : "");
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
          base64={base64}
          name={`block-${props.index}`}
          media={text(block.mimeType) || text(resource.mimeType)}
        />
      )}
      {(block.text !== undefined || resource.text !== undefined) && (
        <p class="plain">{text(block.text) || text(resource.text)}</p>
      )}
      {type === "resource_link" && <p>{text(block.name)}</p>}
    </>
  );
}
