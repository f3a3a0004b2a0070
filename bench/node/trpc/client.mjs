// Calls the tRPC server at a concurrency for some seconds; prints calls per second and p99 as JSON.
import { createTRPCClient, createWSClient, wsLink } from "@trpc/client";
import WebSocket from "ws";

const [port, concurrency, seconds] = process.argv.slice(2).map(Number);
const socket = createWSClient({ url: `ws://127.0.0.1:${port}`, WebSocket });
const client = createTRPCClient({ links: [wsLink({ client: socket })] });
const input = { text: "x".repeat(300) };
const run = async (until, taken) => {
  while (performance.now() < until) {
    const start = performance.now();
    await client.echo.query(input);
    taken.push(performance.now() - start);
  }
};
const round = async (length) => {
  const taken = [];
  const start = performance.now();
  await Promise.all(Array.from({ length: concurrency }, () => run(start + length * 1000, taken)));
  return [taken, (performance.now() - start) / 1000];
};
await round(0.5);
const [taken, elapsed] = await round(seconds);
taken.sort((a, b) => a - b);
console.log(JSON.stringify({ rate: taken.length / elapsed, p99: taken[Math.floor(taken.length * 0.99)] / 1000 }));
process.exit(0);
