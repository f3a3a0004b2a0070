/** The input of one operation while it is filled in: one value with two views, the form and the editor. */

import { batch, computed, effect, signal } from "@preact/signals";
import type { Operation } from "../api/types";
import { initialValue } from "../form/defaults";
import { missingProperty } from "../form/messages";
import { Schemas } from "../form/schema";
import type { Check, FoundProblem } from "../form/validate";
import { type JsonError, parseJson } from "../json/text";
import { equal, getAt, isObject, type Json, type Path, pointerOf, pointerParts, removeAt, setAt } from "../json/value";

const VALIDATE_AFTER_MS = 150;

export class FormState {
  readonly schemas: Schemas;
  readonly value = signal<Json>({});
  /** The error of the editor's text: the value is the last valid one. */
  readonly jsonError = signal<JsonError | undefined>(undefined);
  /** The errors of JSON fields whose text is not JSON, by pointer: the value has their last valid one. */
  readonly unreadable = signal<ReadonlyMap<string, JsonError>>(new Map());
  /** Counts resets: the form is drawn anew after each. */
  readonly resets = signal(0);
  /** Pointers of fields that lost focus; their messages are shown. */
  readonly touched = signal<ReadonlySet<string>>(new Set());
  /** Whether all messages are shown, after Run was pressed. */
  readonly showsAll = signal(false);
  readonly problems = signal<FoundProblem[]>([]);
  /** The server's problems with the last input; cleared on the next change. */
  readonly refused = signal<FoundProblem[]>([]);
  /** The branch that is chosen in a union, by pointer. */
  readonly choices = signal<ReadonlyMap<string, number>>(new Map());
  readonly view = signal<"form" | "json">("form");
  /** Optional groups that were opened, by pointer. */
  readonly opened = signal<ReadonlySet<string>>(new Set());
  private readonly memory = new Map<string, Json>();
  private check: Check | undefined;

  /** The problems of the text in JSON fields, of the value, and those that the server found. */
  readonly all = computed<FoundProblem[]>(() => {
    const unreadable = [...this.unreadable.value].map(([pointer, { detail }]) => ({ pointer, detail }));
    return [...unreadable, ...this.problems.value, ...this.refused.value];
  });
  /** Errors in the editor's text: invalid JSON, else schema problems. */
  readonly marks = computed<{ pointer?: string; detail: string }[]>(() => {
    if (this.jsonError.value) return [{ detail: this.jsonError.value.message }];
    const own = this.showsAll.value
      ? this.problems.value
      : this.problems.value.filter(({ detail }) => missingProperty(detail) === undefined);
    return [...own, ...this.refused.value];
  });
  /** Whether the text of every field is valid; only then does the value match the fields and can be sent. */
  readonly isReadable = computed(() => !this.jsonError.value && this.unreadable.value.size === 0);

  constructor(readonly operation: Operation) {
    this.schemas = new Schemas(operation.inputSchema);
    this.value.value = initialValue(operation.inputSchema);
    void this.load();
  }

  private async load(): Promise<void> {
    const { compile } = await import("../form/validate");
    this.check = compile(this.operation.inputSchema);
    let timer: ReturnType<typeof setTimeout> | undefined;
    effect(() => {
      const value = this.value.value;
      clearTimeout(timer);
      timer = setTimeout(() => this.validate(value), VALIDATE_AFTER_MS);
    });
    this.validate(this.value.peek());
  }

  private validate(value: Json): void {
    if (this.check) this.problems.value = this.check(value);
  }

  /** Validate immediately, as Run does, and return whether the value can be sent. */
  validateNow(): boolean {
    this.validate(this.value.peek());
    this.showsAll.value = true;
    return this.isReadable.peek() && this.problems.peek().length === 0;
  }

  get(path: Path): Json | undefined {
    return getAt(this.value.value, path);
  }

  set(path: Path, part: Json): void {
    this.replace(setAt(this.value.peek(), path, part));
  }

  remove(path: Path): void {
    this.replace(removeAt(this.value.peek(), path) ?? {});
  }

  replace(value: Json): void {
    batch(() => {
      this.value.value = value;
      this.refused.value = [];
    });
  }

  /** Apply the editor's text; invalid JSON leaves the value unchanged. */
  setText(text: string): void {
    try {
      const read = parseJson(text);
      this.jsonError.value = undefined;
      if (!equal(read, this.value.peek())) this.replace(read);
    } catch (error) {
      this.jsonError.value = error as JsonError;
    }
  }

  /** Set or remove the error of a JSON field. */
  setUnreadable(pointer: string, error?: JsonError): void {
    const now = new Map(this.unreadable.peek());
    if (error) now.set(pointer, error);
    else if (!now.delete(pointer)) return;
    this.unreadable.value = now;
  }

  reset(value?: Json): void {
    batch(() => {
      this.replace(value ?? initialValue(this.operation.inputSchema));
      this.choices.value = new Map();
      this.touched.value = new Set();
      this.showsAll.value = false;
      this.jsonError.value = undefined;
      this.unreadable.value = new Map();
      this.resets.value++;
    });
  }

  touch(pointer: string): void {
    if (this.touched.peek().has(pointer)) return;
    this.validate(this.value.peek()); // removes outdated messages
    this.touched.value = new Set([...this.touched.peek(), pointer]);
  }

  /** The messages of one field. */
  messages(pointer: string): string[] {
    const isShown = this.showsAll.value || this.touched.value.has(pointer);
    const own = isShown ? this.problems.value : [];
    const shown = [...own, ...this.refused.value].filter((problem) => fieldOf(problem) === pointer);
    return [...new Set(shown.map((problem) => problem.detail))];
  }

  /** Choose a branch of a union: its `shared` properties keep their values, the others are stored. */
  choose(path: Path, from: number, to: number, fresh: Json, shared: ReadonlySet<string>): void {
    const pointer = pointerOf(path);
    const current = this.get(path);
    if (current !== undefined) this.memory.set(`${pointer} ${from}`, current);
    const remembered = this.memory.get(`${pointer} ${to}`) ?? fresh;
    let next = remembered;
    if (isObject(remembered) && isObject(current)) {
      const common = Object.entries(current).filter(([name]) => shared.has(name));
      next = { ...remembered, ...Object.fromEntries(common) };
    }
    batch(() => {
      this.choices.value = new Map([...this.choices.peek(), [pointer, to]]);
      this.set(path, next);
    });
  }

  toggle(pointer: string): void {
    const now = new Set(this.opened.peek());
    if (!now.delete(pointer)) now.add(pointer);
    this.opened.value = now;
  }
}

/** Return the pointer of the field that shows a problem; a missing property has its own. */
export function fieldOf(problem: FoundProblem): string {
  const missing = missingProperty(problem.detail);
  return missing === undefined ? problem.pointer : problem.pointer + pointerOf([missing]);
}

/** Return the nearest parent field with a control. */
export function nearestField(problem: FoundProblem, has: (pointer: string) => boolean): string | undefined {
  const parts = pointerParts(fieldOf(problem));
  while (parts.length > 0) {
    const pointer = pointerOf(parts);
    if (has(pointer)) return pointer;
    parts.pop();
  }
  return undefined;
}

const forms = new Map<string, FormState>();

/** The form of an operation; it keeps its input while other screens are shown. */
export function formOf(operation: Operation): FormState {
  const known = forms.get(operation.id);
  if (known && JSON.stringify(known.operation.inputSchema) === JSON.stringify(operation.inputSchema)) return known;
  const made = new FormState(operation);
  if (known) made.value.value = known.value.peek();
  forms.set(operation.id, made);
  return made;
}
