/** Summary of an operation's input and output, beside the search and as the Schema tab. */

import { useEffect, useState } from "preact/hooks";
import { to } from "../addresses";
import { RequestError } from "../api/client";
import type { CatalogueEntry, Operation, Schema } from "../api/types";
import { describe } from "../form/control";
import { Schemas, typeText } from "../form/schema";
import { go } from "../router";
import { Button } from "./Button";
import { plainText } from "./Markdown";
import { TypeChip } from "./TypeChip";

const SOON_MS = 60;
const known = new Map<string, Operation>();

/** Fetch the selected operation after a short delay. */
function useOperation(id: string, load: (id: string) => Promise<Operation>): Operation | undefined {
  const [operation, setOperation] = useState<Operation | undefined>(known.get(id));
  useEffect(() => {
    setOperation(known.get(id));
    if (known.has(id)) return;
    let isCurrent = true;
    const timer = setTimeout(() => {
      load(id).then(
        (read) => {
          known.set(id, read);
          if (known.size > 50) known.delete(known.keys().next().value as string);
          if (isCurrent) setOperation(read);
        },
        (error: unknown) => {
          if (!(error instanceof RequestError)) throw error; // Keep showing the catalogue's entry.
        },
      );
    }, SOON_MS);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [id]);
  return operation?.id === id ? operation : undefined;
}

export function Preview(props: { entry: CatalogueEntry; load: (id: string) => Promise<Operation> }) {
  const { entry } = props;
  const operation = useOperation(entry.id, props.load);
  return (
    <>
      <div class="bar">
        <h2>Preview</h2>
        <span class="right">
          <Button onClick={() => go(to.operation(entry.id))}>
            Open<kbd>↵</kbd>
          </Button>
        </span>
      </div>
      <div class="body col">
        <div>
          <div class="chips mb">
            <TypeChip type={entry.type} />
            {entry.method && (
              <span class="chip m">
                {entry.method} {shortPath(entry.path ?? "")}
              </span>
            )}
            {entry.deprecated && <span class="chip w">deprecated</span>}
          </div>
          <p class="t2">
            {firstParagraph(plainText(operation?.description ?? entry.description ?? entry.title ?? ""))}
          </p>
        </div>
        {operation && (
          <>
            <div>
              <h2 class="mb">Input</h2>
              <Signature schema={operation.inputSchema} />
            </div>
            <div class="row t3">
              <span>Output</span>
              <code>{outputName(operation.outputSchema)}</code>
            </div>
          </>
        )}
      </div>
    </>
  );
}

function firstParagraph(text: string): string {
  const [first = ""] = text.split(/\n\s*\n/);
  return first.length > 300 ? `${first.slice(0, 300).trimEnd()}…` : first;
}

function shortPath(path: string): string {
  const parts = path.split("/").filter(Boolean);
  return path.length <= 40 || parts.length <= 3 ? path : `…/${parts.slice(-3).join("/")}`;
}

export function outputName(schema: Schema): string {
  if (typeof schema === "object" && typeof schema.title === "string") return schema.title;
  const schemas = new Schemas(schema);
  const resolved = schemas.resolve(schema);
  return typeof resolved.$name === "string" ? resolved.$name : typeText(resolved, schemas);
}

/** The properties of an object: name, type, whether it is required. */
export function Signature(props: { schema: Schema; withHelp?: boolean }) {
  const schemas = new Schemas(props.schema);
  const resolved = schemas.resolve(props.schema);
  const { control } = describe(resolved, schemas);
  if (control.kind !== "object") return <code>{typeText(resolved, schemas)}</code>;
  if (control.members.length === 0) return <p class="t3">{control.extra ? "any properties" : "no properties"}</p>;
  return (
    <table class="sig">
      <tbody>
        {control.members.map((member) => (
          <tr key={member.name}>
            <td>
              <code>{member.name}</code>
              {member.required && (
                <span class="err" title="required">
                  {" *"}
                </span>
              )}
            </td>
            <td class="t3">
              <code>{typeText(member.schema, schemas)}</code>
            </td>
            {props.withHelp && (
              <td class="t2">
                {typeof member.schema.description === "string" ? plainText(member.schema.description) : ""}
              </td>
            )}
            <td class="t3">{member.deprecated ? "deprecated" : ""}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
