// The documentation page. Text of the document is shown as text: nothing here makes HTML of it.
"use strict";

const base = new URL(".", location.href);
const found = (id) => document.getElementById(id);
let api = { paths: {} };
let operations = [];
let running = null;

function make(tag, text, attributes = {}) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function authorised(headers) {
  const token = found("token").value.trim();
  return token ? { ...headers, Authorization: `Bearer ${token}` } : headers;
}

async function load() {
  const status = found("count");
  status.className = "";
  status.textContent = "Loading";
  try {
    const response = await fetch(new URL("openapi.json", base), { headers: authorised({ Accept: "application/json" }) });
    const body = await response.json();
    if (!response.ok) throw new Error(body.detail || response.statusText);
    api = body;
  } catch (error) {
    status.className = "error";
    status.textContent = `The document cannot be loaded: ${error.message}`;
    return;
  }
  operations = Object.entries(api.paths)
    .filter(([, item]) => item.post)
    .map(([path, item]) => ({ path, item, id: item.post.operationId, text: searchable(item.post) }));
  found("title").textContent = document.title = api.info.title;
  list();
  open(decodeURIComponent(location.hash.slice(1)));
}

function searchable(post) {
  return [post.operationId, post.summary, post.description].filter(Boolean).join(" ").toLowerCase();
}

function list() {
  const words = found("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = operations.filter((each) => words.every((word) => each.text.includes(word)));
  found("count").textContent = `${shown.length} of ${operations.length} operations`;
  const current = decodeURIComponent(location.hash.slice(1));
  found("list").replaceChildren(
    ...shown.map((each) => {
      const entry = make("li");
      const button = make("button", each.id, { type: "button" });
      if (each.id === current) button.setAttribute("aria-current", "true");
      button.addEventListener("click", () => { location.hash = encodeURIComponent(each.id); });
      entry.append(button);
      return entry;
    }),
  );
}

function open(id) {
  const chosen = operations.find((each) => each.id === id);
  if (!chosen) return;
  if (running) running.abort();
  const post = chosen.item.post;
  const own = post["x-operations"] || {};
  const methods = ["post", "get"].filter((method) => chosen.item[method]).map((method) => method.toUpperCase());
  const parts = [
    make("h2", chosen.id),
    make("p", `${methods.join(", ")} ${chosen.path}`, { class: "path" }),
    make("p", [own.type, own.version, post.deprecated ? "deprecated" : ""].filter(Boolean).join(" · ")),
    make("p", post.description || "", { class: "text" }),
  ];
  const scopes = (post.security || []).flatMap((each) => Object.values(each).flat());
  if (scopes.length) parts.push(make("p", `Scopes: ${[...new Set(scopes)].join(", ")}`));
  const input = post.requestBody.content["application/json"].schema;
  parts.push(...schemaView("Input", input));
  for (const [kind, media] of Object.entries(post.responses["200"].content)) {
    parts.push(...schemaView(`Result (${kind})`, media.schema || media.itemSchema || {}));
  }
  const errors = Object.entries(own.errorSchemas || {});
  for (const [code, schema] of errors) parts.push(...schemaView(`Error ${code}`, schema));
  parts.push(...tryView(chosen, input));
  found("main").replaceChildren(...parts);
  found("main").focus();
  list();
}

function target(reference) {
  return reference.slice(2).split("/").reduce((node, key) => node && node[key.replace(/~1/g, "/").replace(/~0/g, "~")], api);
}

function references(schema, names = new Set()) {
  if (Array.isArray(schema)) schema.forEach((each) => references(each, names));
  else if (schema && typeof schema === "object") {
    for (const [key, value] of Object.entries(schema)) {
      if (key === "$ref" && typeof value === "string" && value.startsWith("#/components/schemas/")) {
        if (!names.has(value)) references(target(names.add(value) && value), names);
      } else references(value, names);
    }
  }
  return names;
}

function schemaView(title, schema) {
  const parts = [make("h3", title), make("pre", JSON.stringify(schema, null, 2))];
  for (const reference of references(schema)) {
    const details = make("details");
    details.append(make("summary", reference.split("/").pop()), make("pre", JSON.stringify(target(reference), null, 2)));
    parts.push(details);
  }
  return parts;
}

// An input to start from: the default or first example of each schema, else its simplest value. The outer object gets all
// properties, nested objects get the required ones.
function sample(schema, depth = 0) {
  if (!schema || typeof schema !== "object" || depth > 6) return null;
  if (schema.$ref) return sample(target(schema.$ref), depth + 1);
  if ("default" in schema) return schema.default;
  if ("const" in schema) return schema.const;
  if (schema.examples && schema.examples.length) return schema.examples[0];
  if (schema.enum) return schema.enum[0];
  const branch = (schema.anyOf || schema.oneOf || schema.allOf || [])[0];
  if (branch) return sample(branch, depth + 1);
  const type = Array.isArray(schema.type) ? schema.type[0] : schema.type;
  if (type === "object" || schema.properties) {
    const wanted = depth ? schema.required || [] : Object.keys(schema.properties || {});
    return Object.fromEntries(wanted.map((name) => [name, sample((schema.properties || {})[name], depth + 1)]));
  }
  return { string: "", integer: schema.minimum ?? 0, number: schema.minimum ?? 0, boolean: false, array: [] }[type] ?? null;
}

function tryView(chosen, input) {
  const text = make("textarea", JSON.stringify(sample(input) ?? {}, null, 2), { "aria-label": "Input", spellcheck: "false" });
  const actions = make("div", undefined, { class: "actions" });
  const output = make("pre", "", { role: "status" });
  const kinds = Object.keys(chosen.item.post.responses["200"].content);
  if (kinds.some((kind) => kind !== "text/event-stream")) {
    actions.append(button("Call", () => call(chosen.path, text.value, output, "application/json, */*;q=0.1")));
  }
  if (kinds.includes("text/event-stream")) {
    actions.append(button("Subscribe", () => call(chosen.path, text.value, output, "text/event-stream")));
  }
  actions.append(button("Stop", () => running && running.abort()));
  return [make("h3", "Try it"), text, actions, output];
}

function button(label, action) {
  const element = make("button", label, { type: "button" });
  element.addEventListener("click", action);
  return element;
}

async function call(path, text, output, accept) {
  if (running) running.abort();
  const own = (running = new AbortController());
  const started = performance.now();
  output.className = "";
  output.textContent = "Waiting";
  try {
    JSON.parse(text);
    const response = await fetch(new URL(`.${path}`, base), {
      method: "POST",
      headers: authorised({ "Content-Type": "application/json", Accept: accept }),
      body: text,
      signal: own.signal,
    });
    const head = `${response.status} ${response.statusText} · ${Math.round(performance.now() - started)} ms\n`;
    output.className = response.ok ? "" : "error";
    const kind = response.headers.get("content-type") || "";
    output.textContent = head;
    if (kind.startsWith("text/event-stream")) {
      await readEvents(response, output);
      output.append("\nEnded");
    } else output.textContent += await readBody(response, kind);
  } catch (error) {
    output.className = "error";
    output.textContent += `\n${error.name === "AbortError" ? "Stopped" : error.message}`;
  }
}

async function readBody(response, kind) {
  if (kind.includes("json")) return JSON.stringify(await response.json(), null, 2);
  if (kind.startsWith("text/")) return response.text();
  return `${kind}, ${(await response.arrayBuffer()).byteLength} bytes`;
}

async function readEvents(response, output) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    waiting += value;
    const blocks = waiting.split(/\r\n\r\n|\n\n|\r\r/);
    waiting = blocks.pop();
    for (const block of blocks) {
      const lines = block.split(/\r\n|\n|\r/).filter((line) => line && !line.startsWith(":"));
      if (lines.length) output.append(`\n${lines.join("\n")}\n`);
    }
    output.scrollTop = output.scrollHeight;
  }
}

found("load").addEventListener("click", load);
found("token").addEventListener("change", load);
found("search").addEventListener("input", list);
addEventListener("hashchange", () => open(decodeURIComponent(location.hash.slice(1))));
load();
