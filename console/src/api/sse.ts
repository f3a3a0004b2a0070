/** Server-sent events from the body of a fetch, which can send credentials, unlike EventSource. */

export interface ServerEvent {
  type: string;
  id: string;
  data: string;
}

/** Incremental parser of events from chunks of text. */
export class EventParser {
  private buffer = "";
  private data: string[] = [];
  private type = "";
  private id = "";

  push(chunk: string): ServerEvent[] {
    const events: ServerEvent[] = [];
    this.buffer += chunk;
    // A trailing carriage return may be the first half of CRLF.
    const complete = this.buffer.endsWith("\r") ? this.buffer.length - 1 : this.buffer.length;
    const lines = this.buffer.slice(0, complete).split(/\r\n|\n|\r/);
    this.buffer = (lines.pop() ?? "") + this.buffer.slice(complete);
    for (const line of lines) {
      if (line) this.field(line);
      else this.dispatch(events);
    }
    return events;
  }

  private field(line: string): void {
    const colon = line.indexOf(":");
    if (colon === 0) return;
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") this.data.push(value);
    else if (name === "event") this.type = value;
    else if (name === "id" && !value.includes("\0")) this.id = value;
  }

  private dispatch(events: ServerEvent[]): void {
    if (this.data.length > 0) events.push({ type: this.type || "message", id: this.id, data: this.data.join("\n") });
    this.data = [];
    this.type = "";
  }
}

/** Pass the events of each chunk of a response to a function; its promise delays the next chunk. */
export async function readEvents(
  body: ReadableStream<Uint8Array>,
  receive: (events: ServerEvent[]) => void | Promise<void>,
): Promise<void> {
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    await receive(parser.push(decoder.decode(value, { stream: true })));
  }
}
