/** Positions of the parts of a JSON text, for markers and folding in the editor. */

const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/g;

export interface Place {
  from: number;
  to: number;
}

interface Open {
  pointer: string;
  from: number;
  /** The number of the next item of an array; -1 in an object. */
  next: number;
}

/** Return the positions of the values at these pointers in a JSON text. */
export function placesOf(text: string, pointers: ReadonlySet<string>): Map<string, Place> {
  const reader = new PlaceReader(pointers);
  for (const match of text.matchAll(TOKEN)) reader.read(match[0], match.index);
  return reader.found;
}

class PlaceReader {
  readonly found = new Map<string, Place>();
  private readonly stack: Open[] = [];
  private name: string | undefined;

  constructor(private readonly pointers: ReadonlySet<string>) {}

  read(token: string, at: number): void {
    const above = this.stack.at(-1);
    if (token === "{" || token === "[") {
      this.stack.push({ pointer: this.here(), from: at, next: token === "{" ? -1 : 0 });
      this.name = undefined;
    } else if (token === "}" || token === "]") {
      const open = this.stack.pop();
      if (open) this.note(open.pointer, open.from, at + 1);
      this.name = "";
    } else if (token === ",") {
      this.name = undefined;
      if (above && above.next >= 0) above.next++;
    } else if (token !== ":") {
      if (above?.next === -1 && this.name === undefined) this.name = nameOf(token);
      else this.note(this.here(), at, at + token.length);
    }
  }

  private here(): string {
    const above = this.stack.at(-1);
    if (!above) return "";
    const part = above.next < 0 ? (this.name ?? "") : String(above.next);
    return `${above.pointer}/${part.replaceAll("~", "~0").replaceAll("/", "~1")}`;
  }

  private note(pointer: string, from: number, to: number): void {
    if (this.pointers.has(pointer) && !this.found.has(pointer)) this.found.set(pointer, { from, to });
  }
}

function nameOf(token: string): string {
  try {
    return String(JSON.parse(token));
  } catch {
    return token;
  }
}

/** Return the foldable ranges by the position of their first line: objects and arrays of several lines. */
export function foldsOf(text: string): Map<number, Place> {
  const folds = new Map<number, Place>();
  const stack: number[] = [];
  for (const match of text.matchAll(TOKEN)) {
    const [token] = match;
    if (token === "{" || token === "[") stack.push(match.index);
    else if (token === "}" || token === "]") {
      const open = stack.pop();
      if (open === undefined) continue;
      const line = text.lastIndexOf("\n", open) + 1;
      if (text.lastIndexOf("\n", match.index) >= open) folds.set(line, { from: open + 1, to: match.index });
    }
  }
  return folds;
}
