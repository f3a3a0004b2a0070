/** The web worker: it sends calls, reads their responses, parses large JSON and searches the catalogue. */

import { fromBase64 } from "../json/text";
import { buildIndex, type SearchIndex, searchIndex } from "../search/ranking";
import type { LocalDocument } from "./document";
import type { Message, Question } from "./messages";
import { followStream, sendCall } from "./requests";

const documents = new Map<number, LocalDocument>();
const requests = new Map<number, { controller: AbortController; taken: () => void }>();
let index: SearchIndex = [];

async function answer(id: number, question: Question): Promise<unknown> {
  switch (question.kind) {
    case "index":
      index = buildIndex(question.entries);
      return index.length;
    case "search": {
      const began = performance.now();
      const found = searchIndex(index, question.query, question.filters);
      return { found, milliseconds: performance.now() - began };
    }
    case "call":
      return request(id, ({ signal }) =>
        sendCall(question.request, signal, (document) => documents.set(question.document, document)),
      );
    case "follow":
      return request(id, ({ signal }) => followStream(question.request, signal, (part) => pass(id, part)));
    case "taken":
      return requests.get(question.of)?.taken();
    case "abort":
      return requests.get(question.of)?.controller.abort();
    case "decode":
      return new Blob([fromBase64(question.base64)]);
    case "close":
      return documents.delete(question.document);
    default: {
      const document = documents.get(question.document);
      if (!document) throw new Error("the document was closed");
      const ask = document[question.kind] as (...given: unknown[]) => Promise<unknown>;
      return ask.apply(document, question.given);
    }
  }
}

/** Run a request that the page can abort. */
async function request<T>(id: number, run: (controller: AbortController) => Promise<T>): Promise<T> {
  const controller = new AbortController();
  requests.set(id, { controller, taken: () => {} });
  try {
    return await run(controller);
  } finally {
    requests.delete(id);
  }
}

/** Post a part of a result; resolves when the page has taken it, or has aborted the request. */
function pass(id: number, part: unknown): Promise<void> {
  const open = requests.get(id);
  if (!open || open.controller.signal.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    open.taken = resolve;
    open.controller.signal.addEventListener("abort", () => resolve(), { once: true });
    postMessage({ id, part });
  });
}

addEventListener("message", async (event: MessageEvent<Message>) => {
  const { id, question } = event.data;
  try {
    postMessage({ id, result: await answer(id, question) });
  } catch (error) {
    postMessage({ id, error: String((error as Error).message ?? error) });
  }
});
