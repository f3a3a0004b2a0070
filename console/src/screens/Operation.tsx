/** One operation: try it, read its schema and documentation, see its calls. */

import { useEffect, useLayoutEffect } from "preact/hooks";
import { to } from "../addresses";
import { api } from "../api/client";
import type { Operation as Spec } from "../api/types";
import { Button, CopyButton } from "../components/Button";
import { Tabs } from "../components/Choices";
import { shownSource } from "../components/Frame";
import { Icon } from "../components/Icon";
import { Markdown, plainText } from "../components/Markdown";
import { Empty, Failed, Loading, useFetched } from "../components/Notice";
import { Signature } from "../components/Preview";
import { TryPanel } from "../components/TryPanel";
import { TypeChip } from "../components/TypeChip";
import { withoutSecrets } from "../form/defaults";
import { fromBase64Url, parseJson, toBase64Url, writeJson } from "../json/text";
import { lazy } from "../lazy";
import { route, setQuery } from "../router";
import { type FormState, formOf } from "../state/form";
import { history } from "../state/history";
import { pins, togglePin } from "../state/preferences";
import { runOf } from "../state/runs";
import { catalogue, recoveries, session, signIn } from "../state/session";

const SchemaText = lazy(() => import("../components/SchemaText").then((loaded) => loaded.SchemaText));
const CallsTable = lazy(() => import("../components/CallsTable").then((loaded) => loaded.CallsTable));

type Tab = "try" | "schema" | "docs" | "calls";

export function Operation() {
  const { rest: id } = route.value;
  const version = catalogue.value?.version;
  const { data, problem, again } = useFetched(
    () => api.operation(id),
    [id, version, recoveries.value, session.value?.identity?.id],
  );
  const isFailed = runOf(id).value?.outcome === "failed";
  useEffect(() => {
    document.title = `${isFailed ? "✗ " : ""}${id} – operations`;
  }, [id, isFailed]);
  useEffect(() => {
    shownSource.value = data?.source ?? "";
    return () => {
      shownSource.value = "";
    };
  }, [id, data?.source]);
  if (problem && data?.id !== id)
    return problem.status === 404 ? <Unknown id={id} /> : <Failed problem={problem} retry={again} />;
  if (data?.id !== id) return <Loading rows={8} />;
  return <Opened key={id} operation={data} />;
}

function Unknown(props: { id: string }) {
  return (
    <Empty>
      <b class="m">{props.id}</b> is unknown, or not allowed for {session.value?.identity?.id ?? "an anonymous caller"}.{" "}
      <button type="button" class="acc" onClick={() => (signIn.value = { open: true })}>
        Sign in
      </button>{" "}
      with another token, or{" "}
      <a class="acc" href={to.operations()}>
        search
      </a>
      .
    </Empty>
  );
}

/** The input in a link: it fills the form and never runs. */
function useLinkedInput(form: FormState): void {
  const { hash } = route.value;
  // Before the page is shown: a user who runs it immediately runs the input of the link.
  useLayoutEffect(() => {
    const given = /^#in=([\w-]+)=*$/.exec(hash)?.[1];
    if (!given) return;
    try {
      form.reset(parseJson(fromBase64Url(given)));
    } catch {
      // An invalid link leaves the form unchanged.
    }
  }, [hash]);
}

function Opened(props: { operation: Spec }) {
  const { operation } = props;
  const form = formOf(operation);
  useLinkedInput(form);
  const tab = (route.value.query.get("tab") ?? "try") as Tab;
  const own = history.value.filter((call) => call.operationId === operation.id).length;
  const choose = (next: Tab) => setQuery({ tab: next === "try" ? undefined : next }, { push: true });
  return (
    <>
      <header class="head about">
        <Head operation={operation} form={form} />
        <Tabs
          label="Operation"
          value={tab}
          choose={choose}
          tabs={[
            { id: "try", label: "Try" },
            { id: "schema", label: "Schema" },
            { id: "docs", label: "Docs" },
            { id: "calls", label: "Calls", count: own || undefined },
          ]}
        />
      </header>
      {tab === "try" && <TryPanel form={form} />}
      {tab === "schema" && <SchemaTab operation={operation} />}
      {tab === "docs" && <DocsTab operation={operation} />}
      {tab === "calls" && <CallsTable operationId={operation.id} />}
    </>
  );
}

function Head(props: { operation: Spec; form: FormState }) {
  const { operation, form } = props;
  const { annotations = {} } = operation;
  const isPinned = pins.value.includes(operation.id);
  const link = () => {
    const input = toBase64Url(writeJson(withoutSecrets(operation.inputSchema, form.value.peek())));
    return `${location.origin}${to.operation(operation.id)}#in=${input}`;
  };
  const crumbs = [operation.source, ...operation.id.split(/[./]/).slice(0, -1)].filter(
    (part, index, all) => part && all.indexOf(part) === index,
  );
  const description = plainText(withTitle(operation));
  const short = description.length > 140 ? firstSentences(description) : description;
  return (
    <>
      <div class="row">
        <div class="grow">
          <div class="crumb hide">
            {crumbs.map((crumb, index) => (
              <span class="row" key={crumb}>
                {index > 0 && <Icon name="right" small />}
                <a
                  href={
                    index === 0
                      ? to.operations({ source: operation.source })
                      : to.operations({ q: crumb, source: operation.source })
                  }
                >
                  {crumb}
                </a>
              </span>
            ))}
          </div>
          <div class="row wrap">
            <h1 class="m">{operation.id}</h1>
            <div class="chips">
              <TypeChip type={operation.type} />
              {typeof annotations.method === "string" ? (
                <span class="chip m">
                  {annotations.method} {String(annotations.path ?? "")}
                </span>
              ) : (
                <span class="chip m">{kindOf(operation)}</span>
              )}
              {annotations.deprecated === true && <span class="chip w">deprecated</span>}
            </div>
          </div>
        </div>
        <div class="row hide">
          <Button
            look="x"
            icon="star"
            class={isPinned ? "on" : ""}
            label={isPinned ? "Unpin" : "Pin"}
            aria-pressed={isPinned}
            onClick={() => togglePin(operation.id)}
          />
          <CopyButton icon="link" label="Link" disabled={!form.isReadable.value} text={link}>
            Link
          </CopyButton>
        </div>
      </div>
      <div class="sub">
        {short}
        {short.length < description.length && (
          <>
            {" "}
            <button type="button" class="acc" onClick={() => setQuery({ tab: "docs" }, { push: true })}>
              More
            </button>
          </>
        )}
      </div>
    </>
  );
}

function kindOf(operation: Spec): string {
  const source = catalogue.value?.sources.find((each) => each.name === operation.source);
  return source?.kind ?? "registry";
}

/** The title as first sentence, unless the description begins with it. */
function withTitle(operation: Spec): string {
  const { title = "", description = "" } = operation;
  if (!title || description.toLowerCase().startsWith(title.toLowerCase())) return description || title;
  return description ? `${title.replace(/\.$/, "")}. ${description}` : title;
}

function firstSentences(text: string): string {
  const end = text.slice(0, 160).lastIndexOf(". ");
  return end > 40 ? text.slice(0, end + 1) : `${text.slice(0, 140).trimEnd()}…`;
}

/** The scopes and the resource that callers of an operation need, in words. */
function requirementsOf(access: NonNullable<Spec["accessControl"]>): string[] {
  const { requiredScopes: all = [], requiredScopesAny: any = [], resourceType: type, resourceAction: action } = access;
  const found: string[] = [];
  if (all.length > 0) found.push(`${all.length > 1 ? "the scopes" : "the scope"} ${all.join(", ")}`);
  if (any.length > 0) found.push(`${any.length > 1 ? "one of the scopes" : "the scope"} ${any.join(", ")}`);
  const ofType = type ? ` of type ${type}` : "";
  const withAction = action ? ` with action ${action}` : "";
  if (ofType || withAction) found.push(`a resource${ofType}${withAction}`);
  return found;
}

function SchemaTab(props: { operation: Spec }) {
  const { operation } = props;
  const requirements = requirementsOf(operation.accessControl ?? {});
  return (
    <div class="body col pt" role="tabpanel" aria-label="Schema">
      {operation.signature && <code class="break">{operation.signature}</code>}
      <section>
        <h2 class="mb">Input</h2>
        <Signature schema={operation.inputSchema} withHelp />
        <SchemaText schema={operation.inputSchema} label="Input schema" />
      </section>
      <section>
        <h2 class="mb">Output</h2>
        <Signature schema={operation.outputSchema} withHelp />
        <SchemaText schema={operation.outputSchema} label="Output schema" />
      </section>
      {Object.entries(operation.errorSchemas ?? {}).map(([code, schema]) => (
        <section key={code}>
          <h2 class="mb">
            Error <code class="err">{code}</code>
          </h2>
          <SchemaText schema={schema} label={`Schema of ${code}`} />
        </section>
      ))}
      <section>
        <h2 class="mb">Access</h2>
        <p class="t2">
          {requirements.length > 0 ? `Callers need ${requirements.join("; ")}.` : "All callers of this server."}
        </p>
      </section>
    </div>
  );
}

function DocsTab(props: { operation: Spec }) {
  const { operation } = props;
  return (
    <div class="body col pt" role="tabpanel" aria-label="Docs">
      {operation.title && <h2>{operation.title}</h2>}
      {operation.description ? <Markdown text={operation.description} /> : <p class="t3">No description.</p>}
      {operation.tags && operation.tags.length > 0 && (
        <div class="chips">
          {operation.tags.map((tag) => (
            <a class="chip" key={tag} href={to.operations({ tag })}>
              {tag}
            </a>
          ))}
        </div>
      )}
      {operation.examples.map((example, index) => (
        <section key={index}>
          <h2 class="mb">{example.title ?? `Example ${index + 1}`}</h2>
          <pre class="card">{writeJson(example.input, 2)}</pre>
        </section>
      ))}
    </div>
  );
}
