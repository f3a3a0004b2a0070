// Calls the shop through the client that hey-api generates.
import { client } from "./generated/hey/client.gen.js";
import { filesStore, shopBuy, shopFind, shopFindGet, shopTreesDepth, shopWatch, shopWatchGet } from "./generated/hey/sdk.gen.js";

declare const process: { argv: [string, string, string] };
client.setConfig({ baseUrl: process.argv[2] });

const found = await shopFind({ body: { name: "chair", limit: 2, colours: ["red"] } });
const first: string | undefined = found.data?.[0]?.name;
const asked = await shopFindGet({ query: { name: "chair", limit: 1, colours: ["red", "blue"] } });
const refused = await shopBuy({ body: { item: 2 } });
const depth = await shopTreesDepth({ body: { tree: { value: 1, children: [{ value: 2 }] } } });
const stored = await filesStore({ body: { content: "AAEC" } });

const names: unknown[] = [];
const types: (string | undefined)[] = [];
const watched = await shopWatch({ body: { item: 5 }, onSseEvent: (event) => types.push(event.event) });
for await (const item of watched.stream) names.push((item as { name?: string }).name);
const asked_stream: unknown[] = [];
for await (const item of (await shopWatchGet({ query: { item: 5, events: 1 } })).stream) asked_stream.push(item);

console.log(JSON.stringify({
  found: [found.response?.status, first, found.data?.length],
  asked: [asked.response?.status, asked.data?.[0]?.colour],
  refused: [refused.response?.status, refused.error?.code],
  depth: depth.data,
  stored: stored.data,
  names: names.filter(Boolean),
  ended: types.at(-1),
  asked_stream: asked_stream.length,
}));
