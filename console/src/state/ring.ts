/** The last events of a stream, bounded by number and bytes, with totals. */

export interface StreamEvent {
  seq: number;
  at: number;
  type: string;
  id: string;
  /** The unparsed envelope. */
  text: string;
  warning?: string | undefined;
  /** Number of events that are missing before this one. */
  missing?: number | undefined;
  /** Why the stream ended, for its last row. */
  failure?: string | undefined;
}

export const MOST_EVENTS = 5_000;
export const MOST_BYTES = 16 << 20;

export class Ring {
  private events: StreamEvent[] = [];
  private first = 0;
  private bytes = 0;
  received = 0;

  push(event: Omit<StreamEvent, "seq">): StreamEvent {
    const kept = event as StreamEvent;
    kept.seq = ++this.received;
    this.events.push(kept);
    this.bytes += kept.text.length;
    while (this.size > MOST_EVENTS || (this.bytes > MOST_BYTES && this.size > 1)) {
      this.bytes -= this.events[this.first]?.text.length ?? 0;
      this.first++;
    }
    // Dropped events are removed in batches, so that a push does not move the whole list.
    if (this.first > MOST_EVENTS) {
      this.events = this.events.slice(this.first);
      this.first = 0;
    }
    return kept;
  }

  get size(): number {
    return this.events.length - this.first;
  }

  /** Newest first. */
  at(index: number): StreamEvent | undefined {
    return index < 0 || index >= this.size ? undefined : this.events[this.events.length - 1 - index];
  }

  /** A copy, oldest first. */
  all(): StreamEvent[] {
    return this.events.slice(this.first);
  }

  /** Return the event with a number, if still stored. */
  bySeq(seq: number): StreamEvent | undefined {
    return this.at(this.received - seq);
  }
}

export type Matches = (data: unknown, text: string) => boolean;

const COMPARISON = /^\s*([\w.[\]$-]+)\s*(>=|<=|==|=|!=|>|<)\s*(.+?)\s*$/;

/** Parse a filter: words, or `path op value` as `celsius >= 14`. */
export function readFilter(filter: string): Matches | undefined {
  const trimmed = filter.trim();
  if (!trimmed) return undefined;
  const read = COMPARISON.exec(trimmed);
  if (!read) {
    const wanted = trimmed.toLowerCase();
    return (_, text) => text.toLowerCase().includes(wanted);
  }
  const [, path = "", operator = "", given = ""] = read;
  const parts = path.replaceAll(/\[(\d+)\]/g, ".$1").split(".");
  const wanted = readValue(given);
  return (data) => {
    let value: unknown = data;
    for (const part of parts) value = (value as Record<string, unknown> | null | undefined)?.[part];
    return value !== undefined && compare(value, operator, wanted);
  };
}

function readValue(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function compare(value: unknown, operator: string, wanted: unknown): boolean {
  if (operator === "=" || operator === "==") return value === wanted;
  if (operator === "!=") return value !== wanted;
  if (typeof value !== typeof wanted || (typeof value !== "number" && typeof value !== "string")) return false;
  const other = wanted as number | string;
  if (operator === ">=") return value >= other;
  if (operator === "<=") return value <= other;
  return operator === ">" ? value > other : value < other;
}
