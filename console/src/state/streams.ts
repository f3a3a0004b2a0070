/** Open streams of this page. The worker reads them and passes events in batches; views update once a batch. */

import { signal } from "@preact/signals";
import { callAddress, to } from "../addresses";
import { follow, newKey, newTraceId, type StreamEnd } from "../api/calls";
import { RequestError } from "../api/client";
import type { Operation, Problem } from "../api/types";
import type { TimedEvent } from "../data/requests";
import { withoutSecrets } from "../form/defaults";
import type { Check } from "../form/validate";
import type { Json } from "../json/value";
import { go } from "../router";
import { alertReader, announce } from "./announce";
import { remember } from "./history";
import { Ring, type StreamEvent } from "./ring";
import { runOf } from "./runs";
import { historyOwner, suspect } from "./session";

const FRAME_MS = 8;
/** The least time between two updates. */
const DRAW_MS = 100;
const SAY_MS = 5_000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 8_000;
/** Attempts to resume a stream before it counts as failed: about half a minute. */
const MOST_ATTEMPTS = 7;
const CANNOT_RESUME = "the connection was lost, and the server cannot resume this stream: start it again";

export class StreamState {
  readonly ring = new Ring();
  /** Counter that triggers a new render. */
  readonly version = signal(0);
  readonly state = signal<"connecting" | "live" | "resuming" | "ended" | "failed" | "stopped">("connecting");
  readonly paused = signal(false);
  readonly rate = signal(0);
  readonly requestId = signal("");
  problem: Problem | undefined;
  warnings = 0;
  failures = 0;
  /** Number of gaps in the sequence of events. */
  gaps = 0;
  /** Number of resumptions after a lost connection. */
  resumed = 0;
  /** The events shown while paused. */
  frozen: { ring: StreamEvent[]; received: number } | undefined;
  readonly startedAt = Date.now();
  readonly owner = historyOwner();
  readonly traceId = newTraceId();
  private readonly controller = new AbortController();
  private check: Check | undefined;
  private checked = 0;
  private isDrawing = false;
  private drawnAt = 0;
  private second = { at: performance.now(), received: 0 };
  private saidAt = 0;
  private lastNumber = 0;
  /** The id of the last event, to resume the stream. */
  private lastId = "";

  constructor(
    readonly operation: Operation,
    readonly input: Json,
  ) {}

  async run(opened: () => void): Promise<void> {
    const { compile } = await import("../form/validate");
    this.check = compile(this.operation.outputSchema);
    let end: StreamEnd = {};
    try {
      for (let attempt = 0; ; attempt++) {
        const before = this.lastId;
        end = await this.follow(opened);
        if (!end.isLost || !this.lastId) break;
        if (before !== this.lastId) attempt = 0;
        suspect();
        if (attempt >= MOST_ATTEMPTS) break;
        this.state.value = "resuming";
        this.draw();
        await this.wait(Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** attempt));
      }
      // 410: the server does not store events of this stream, or they expired.
      this.end(end.problem?.status === 410 ? { ...end.problem, detail: CANNOT_RESUME } : end.problem);
    } catch (error) {
      if (!this.controller.signal.aborted) throw error;
      this.state.value = "stopped";
    }
    this.draw();
    await this.remember();
  }

  /** Follow the stream after the last received event: the server stores events for a while. */
  private async follow(opened: () => void): Promise<StreamEnd> {
    const options = {
      address: callAddress(this.operation.http?.path ?? ""),
      input: this.input,
      traceId: this.traceId,
      signal: this.controller.signal,
      lastEventId: this.lastId,
    };
    try {
      return await follow(
        options,
        (items) => this.receive(items),
        (requestId) => {
          if (this.state.peek() === "connecting") {
            this.requestId.value = requestId;
            opened();
          } else {
            this.resumed++;
            announce("The stream resumed");
          }
          this.state.value = "live";
        },
      );
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      return { isLost: true, problem: { ...error.problem, executed: "unknown" } };
    }
  }

  private wait(milliseconds: number): Promise<void> {
    const { signal } = this.controller;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(resolve, milliseconds);
      signal.addEventListener("abort", () => {
        clearTimeout(timer);
        reject(signal.reason);
      });
    });
  }

  receive(items: TimedEvent[]): void {
    for (const item of items) {
      const number = Number(/-(\d+)$/.exec(item.id)?.[1] ?? Number.NaN);
      const missing = this.lastNumber && number > this.lastNumber + 1 ? number - this.lastNumber - 1 : undefined;
      if (missing) this.gaps++;
      if (!Number.isNaN(number)) this.lastNumber = number;
      this.lastId = item.id || this.lastId;
      this.ring.push({ at: item.at, type: item.type, id: item.id, text: item.data, missing });
    }
    this.draw();
  }

  private end(problem: Problem | undefined): void {
    this.problem = problem;
    this.state.value = problem ? "failed" : "ended";
    if (problem) {
      this.failures++;
      this.ring.push({ at: Date.now(), type: problem.code, id: "", text: "{}", failure: problem.detail });
      alertReader(`The stream failed: ${problem.detail}`);
    } else announce("The stream ended");
  }

  /** Number of received events; the row of a failure is not one. */
  get received(): number {
    return this.ring.received - this.failures;
  }

  stop(): void {
    this.controller.abort();
  }

  pause(): void {
    this.frozen = this.paused.peek() ? undefined : { ring: this.ring.all().reverse(), received: this.ring.received };
    this.paused.value = !this.paused.peek();
    this.version.value++;
  }

  /** Render new events in the next frame. */
  private draw(): void {
    if (this.isDrawing) return;
    this.isDrawing = true;
    const wait = Math.max(0, this.drawnAt + DRAW_MS - performance.now());
    setTimeout(() => requestAnimationFrame(() => this.drawNow()), wait);
  }

  private drawNow(): void {
    this.isDrawing = false;
    this.look();
    const now = performance.now();
    this.drawnAt = now;
    if (now - this.second.at >= 1_000) {
      this.rate.value = ((this.ring.received - this.second.received) * 1_000) / (now - this.second.at);
      this.second = { at: now, received: this.ring.received };
    }
    if (now - this.saidAt > SAY_MS) {
      this.saidAt = now;
      announce(`${this.received} events`);
    }
    this.version.value++;
  }

  /** Check new events against the declared schema, within the time of a frame; the rest is skipped. */
  private look(): void {
    const until = performance.now() + FRAME_MS;
    this.checked = Math.max(this.checked, this.ring.received - this.ring.size);
    while (this.checked < this.ring.received && performance.now() < until) {
      const event = this.ring.bySeq(++this.checked);
      if (!event || event.failure !== undefined || !this.check) continue;
      const [problem] = this.check((dataOf(event) ?? null) as Json);
      if (!problem) continue;
      event.warning = `${problem.pointer}: ${problem.detail}`;
      this.warnings++;
    }
    if (this.ring.received - this.checked > 2_000) this.checked = this.ring.received - 100;
  }

  private remember(): Promise<void> {
    const outcome = this.state.peek() === "failed" ? "failed" : this.state.peek() === "stopped" ? "cancelled" : "ok";
    return remember({
      id: this.requestId.peek() || newKey(),
      owner: this.owner,
      operationId: this.operation.id,
      at: this.startedAt,
      durationMs: Date.now() - this.startedAt,
      traceId: this.traceId,
      input: withoutSecrets(this.operation.inputSchema, this.input),
      outcome,
      status: this.problem?.status ?? 200,
      label:
        outcome === "ok"
          ? `${this.received} events`
          : outcome === "failed"
            ? (this.problem?.code ?? "failed")
            : "stopped",
      bytes: 0,
      ...(this.problem ? { problem: this.problem } : {}),
    });
  }
}

interface Read {
  data: unknown;
  meta: Record<string, unknown>;
}

/** An event's envelope. */
export function readEvent(event: StreamEvent): Read {
  try {
    const read = JSON.parse(event.text) as Partial<Read>;
    return { data: read.data, meta: read.meta ?? {} };
  } catch {
    return { data: event.text, meta: {} };
  }
}

export function dataOf(event: StreamEvent): unknown {
  return readEvent(event).data;
}

const streams = signal<ReadonlyMap<string, StreamState>>(new Map());
const MOST_STREAMS = 8;

export function streamOf(requestId: string): StreamState | undefined {
  return streams.value.get(requestId);
}

/** Follow a stream and show it; a rejected one shows its error on the operation's page. */
export async function startStream(operation: Operation, input: Json): Promise<void> {
  const stream = new StreamState(operation, input);
  await new Promise<void>((resolve) => {
    void stream
      .run(() => {
        const kept = [...streams.peek()].slice(-MOST_STREAMS + 1);
        streams.value = new Map([...kept, [stream.requestId.peek(), stream]]);
        go(to.call(stream.requestId.peek()));
        resolve();
      })
      .then(() => {
        if (!stream.requestId.peek()) showRefusal(stream);
        resolve();
      });
  });
}

function showRefusal(stream: StreamState): void {
  const problem = stream.problem;
  runOf(stream.operation.id).value = {
    id: newKey(),
    owner: stream.owner,
    operation: stream.operation,
    input: stream.input,
    traceId: stream.traceId,
    startedAt: stream.startedAt,
    state: "done",
    durationMs: Date.now() - stream.startedAt,
    outcome: stream.state.peek() === "stopped" ? "cancelled" : "failed",
    status: problem?.status ?? 0,
    abort: () => {},
    ...(problem ? { problem, ...(problem.requestId ? { requestId: problem.requestId } : {}) } : {}),
  };
}
