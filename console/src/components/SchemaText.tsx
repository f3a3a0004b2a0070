/** A JSON Schema as a tree, folded by default. */

import { useMemo, useState } from "preact/hooks";
import type { Schema } from "../api/types";
import { LocalDocument } from "../data/document";
import { writeJson } from "../json/text";
import type { Json } from "../json/value";
import { Button, CopyButton } from "./Button";
import { Tree } from "./Tree";

export function SchemaText(props: { schema: Schema; label: string }) {
  const [isOpen, setOpen] = useState(false);
  const data = useMemo(() => new LocalDocument(props.schema as Json), [props.schema]);
  return (
    <div class="pt">
      <div class="row">
        <Button look="x" icon={isOpen ? "down" : "right"} aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
          JSON Schema
        </Button>
        <CopyButton look="x" label={`Copy ${props.label}`} text={() => writeJson(props.schema, 2)} />
      </div>
      {isOpen && <Tree document={data} label={props.label} />}
    </div>
  );
}
