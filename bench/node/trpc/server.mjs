// A tRPC server on a WebSocket with one procedure, for comparison; prints its port.
import { initTRPC } from "@trpc/server";
import { applyWSSHandler } from "@trpc/server/adapters/ws";
import { WebSocketServer } from "ws";

const t = initTRPC.create();
const router = t.router({
  echo: t.procedure
    .input((value) => {
      if (typeof value?.text !== "string") throw new Error("text is needed");
      return value;
    })
    .query(({ input }) => input.text),
});
const wss = new WebSocketServer({ port: 0, host: "127.0.0.1", perMessageDeflate: false });
applyWSSHandler({ wss, router });
wss.on("listening", () => console.log(wss.address().port));
process.stdin.on("end", () => process.exit(0)).resume();
