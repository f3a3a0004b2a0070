/** Messages of problems, identical to the server's: tests/messages.json is checked on both sides. */

const SHOWN = 60;

/** The data of a message. */
export interface Violation {
  keyword: string;
  /** The keyword's value in the schema. */
  rule: unknown;
  value: unknown;
  /** Names of the affected properties, if any. */
  names?: string[];
}

export function show(value: unknown, budget = SHOWN): string {
  if (value === undefined) return "";
  if (value === null || typeof value === "boolean") return String(value);
  if (typeof value === "string") return quoted(value, budget);
  if (typeof value === "number") return String(value);
  if (Array.isArray(value))
    return joined(
      "[",
      value.map((item) => () => show(item, 20)),
      "]",
      budget,
    );
  const members = Object.entries(value as object);
  return joined(
    "{",
    members.map(
      ([name, member]) =>
        () =>
          `${quoted(name, 20)}: ${show(member, 20)}`,
    ),
    "}",
    budget,
  );
}

function quoted(text: string, budget: number): string {
  const letters = Array.from(text);
  const cut = letters.length <= budget ? text : letters.slice(0, budget).join("");
  const shown = JSON.stringify(cut);
  return letters.length <= budget ? shown : `${shown.slice(0, -1)}…" (${letters.length} characters)`;
}

function joined(start: string, parts: (() => string)[], end: string, budget: number): string {
  if (budget < SHOWN) return parts.length > 0 ? `${start}…${end}` : start + end;
  const shown: string[] = [];
  let length = 0;
  for (const part of parts) {
    const text = part();
    shown.push(text);
    length += text.length;
    if (length > budget) break;
  }
  const more = shown.length < parts.length ? `, … ${parts.length - shown.length} more` : "";
  return start + shown.join(", ") + more + end;
}

function listed(values: unknown[]): string {
  const shown = values.slice(0, 10).map((value) => show(value, 20));
  if (values.length > 10) return `${shown.join(", ")} or one of ${values.length - 10} more`;
  const last = shown.pop() ?? "";
  return shown.length > 0 ? `${shown.join(", ")} or ${last}` : last;
}

const TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"];

/** Types with their articles, in the server's order: null or an integer. */
export function typeNames(types: string[]): string {
  const ordered = [...types].sort((left, right) => TYPES.indexOf(left) - TYPES.indexOf(right));
  return ordered
    .map((name) => (name === "null" ? name : /^[aio]/.test(name) ? `an ${name}` : `a ${name}`))
    .join(" or ");
}

function namesText(names: string[]): string {
  return (
    names
      .slice(0, 10)
      .map((name) => quoted(name, 40))
      .join(", ") + (names.length > 10 ? " …" : "")
  );
}

const WORDING: Record<string, (it: string, violation: Violation) => string> = {
  additionalItems: (_, { rule }) => `has more than ${String(rule)} items`,
  additionalProperties: (_, { names = [] }) => `has properties that are not allowed: ${namesText(names)}`,
  unevaluatedProperties: (_, { names = [] }) => `has properties that are not allowed: ${namesText(names)}`,
  unevaluatedItems: () => "has items that are not allowed",
  const: (it, { rule }) => `${it} is not ${show(rule)}`,
  contains: () => "has too few or too many items that match `contains`",
  enum: (it, { rule }) => `${it} is not one of ${listed(rule as unknown[])}`,
  exclusiveMaximum: (it, { rule }) => `${it} is not less than ${String(rule)}`,
  exclusiveMinimum: (it, { rule }) => `${it} is not greater than ${String(rule)}`,
  false: (it) => `${it} is not allowed here`,
  maxItems: (_, { rule }) => `has more than ${String(rule)} items`,
  maximum: (it, { rule }) => `${it} is greater than the maximum of ${String(rule)}`,
  maxLength: (it, { rule }) => `${it} is longer than ${String(rule)} characters`,
  maxProperties: (_, { rule }) => `has more than ${String(rule)} properties`,
  minItems: (_, { rule }) => `has fewer than ${String(rule)} items`,
  minimum: (it, { rule }) => `${it} is less than the minimum of ${String(rule)}`,
  minLength: (it, { rule }) => `${it} is shorter than ${String(rule)} characters`,
  minProperties: (_, { rule }) => `has fewer than ${String(rule)} properties`,
  multipleOf: (it, { rule }) => `${it} is not a multiple of ${String(rule)}`,
  not: (it) => `${it} matches a form that is not allowed`,
  pattern: (it, { rule }) => `${it} does not match the pattern ${quoted(String(rule), 60)}`,
  propertyNames: (_, { names = [] }) => `has a property whose name is not allowed: ${show(names[0] ?? "")}`,
  required: (_, { names = [] }) => `missing required property ${quoted(names[0] ?? "", 60)}`,
  dependentRequired: (_, { names = [] }) => `missing required property ${quoted(names[0] ?? "", 60)}`,
  type: (it, { rule }) => `${it} is not ${typeNames(Array.isArray(rule) ? (rule as string[]) : [String(rule)])}`,
  uniqueItems: () => "has duplicate items",
};

export function messageOf(violation: Violation): string {
  const wording = WORDING[violation.keyword];
  return wording ? wording(show(violation.value), violation) : `violates the rule '${violation.keyword}'`;
}

/** Return the message of a union, with the types if every branch fails by type only. */
export function unionMessage(value: unknown, count: number, asked: (string | undefined)[]): string {
  const all = asked.length > 0 && asked.length <= 8 && asked.every(Boolean);
  const types = all ? `: ${[...new Set(asked)].join(" or ")}` : "";
  return `${show(value)} matches none of the ${count} allowed forms${types}`;
}

export const MANY_MATCH = " matches more than one form: exactly one is allowed";

/** Return the missing property that a message names. */
export function missingProperty(detail: string): string | undefined {
  const named = /^missing required property (".*?[^\\]"|"")/.exec(detail)?.[1];
  try {
    return named === undefined ? undefined : (JSON.parse(named) as string);
  } catch {
    return undefined;
  }
}
