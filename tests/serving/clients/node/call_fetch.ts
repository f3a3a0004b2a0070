// Calls the shop through the types of openapi-typescript and openapi-fetch.
import createClient from "openapi-fetch";
import type { paths } from "./generated/shop.js";

declare const process: { argv: [string, string, string] };
const client = createClient<paths>({ baseUrl: process.argv[2] });

const found = await client.POST("/shop/find", { body: { name: "chair", limit: 2, colours: ["red"] } });
const first: string | undefined = found.data?.[0]?.name;

const asked = await client.GET("/shop/find", { params: { query: { name: "chair", limit: 1 } } });

const refused = await client.POST("/shop/buy", { body: { item: 2 } });
const code: string | undefined = refused.error?.code;

const invalid = await client.POST("/shop/find", { body: { name: 3 as unknown as string } });

const watched = await client.GET("/shop/watch", { params: { query: { item: 5 } }, parseAs: "stream" });
const reader = (watched.data as unknown as ReadableStream<BufferSource>).pipeThrough(new TextDecoderStream()).getReader();
let text = "";
for (;;) {
  const { value, done } = await reader.read();
  if (done) break;
  text += value;
}
const events = text.split("\n\n").filter((block) => block.includes("data:"));

console.log(JSON.stringify({
  found: [found.response.status, first, found.data?.length],
  asked: [asked.response.status, asked.data?.length],
  refused: [refused.response.status, code],
  invalid: [invalid.response.status, invalid.error?.errors?.[0]?.pointer],
  events: events.length,
  ended: events.at(-1)?.includes("operations.complete"),
}));
