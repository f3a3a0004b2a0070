/** The web worker: it parses large JSON and searches the catalogue, off the main thread. */

import { buildIndex, type SearchIndex, searchIndex } from "../search/ranking";
import { type LocalDocument, readText } from "./document";
import type { Message, Question } from "./messages";

const documents = new Map<number, LocalDocument>();
let index: SearchIndex = [];

async function answer(question: Question): Promise<unknown> {
  if (question.kind === "index") {
    index = buildIndex(question.entries);
    return index.length;
  }
  if (question.kind === "search") {
    const began = performance.now();
    const found = searchIndex(index, question.query, question.filters);
    return { found, milliseconds: performance.now() - began };
  }
  if (question.kind === "read") {
    const document = readText(new TextDecoder().decode(question.body), question.isEnvelope);
    documents.set(question.document, document);
    return document.summary;
  }
  if (question.kind === "close") return documents.delete(question.document);
  const document = documents.get(question.document);
  if (!document) throw new Error("the document was closed");
  const ask = document[question.kind] as (...given: unknown[]) => Promise<unknown>;
  return ask.apply(document, question.given);
}

addEventListener("message", async (event: MessageEvent<Message>) => {
  const { id, question } = event.data;
  try {
    postMessage({ id, result: await answer(question) });
  } catch (error) {
    postMessage({ id, error: String((error as Error).message ?? error) });
  }
});
