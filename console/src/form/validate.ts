/** Validation of an input with the server's rules. Loaded when an operation is opened. */

import { type OutputUnit, Validator } from "@cfworker/json-schema";
import type { Schema } from "../api/types";
import { atPointer, type Json, plain, pointerParts } from "../json/value";
import { compiled } from "./control";
import { MANY_MATCH, messageOf, show, typeNames, unionMessage } from "./messages";

export interface FoundProblem {
  pointer: string;
  detail: string;
}

export type Check = (value: Json) => FoundProblem[];

/** Keywords whose errors are reported by their subschemas. */
const CONTAINERS = new Set([
  "$ref",
  "$recursiveRef",
  "properties",
  "patternProperties",
  "items",
  "prefixItems",
  "allOf",
  "if",
  "dependentSchemas",
  "additionalItems",
]);
const MOST = 100;

/** Return a function that lists the problems of a value; it finds none if the schema cannot be compiled. */
export function compile(schema: Schema): Check {
  let validator: Validator;
  const prepared = prepare(schema) as object | boolean;
  try {
    validator = new Validator(prepared, "2020-12", false);
  } catch {
    return () => [];
  }
  return (value) => {
    const data = plain(value);
    try {
      const result = validator.validate(data);
      if (result.valid) return [];
      return new Explainer(prepared, data).explain(result.errors).slice(0, MOST);
    } catch {
      return []; // The server validates what this engine cannot.
    }
  };
}

/** Remove formats, which the server ignores, and patterns that JavaScript cannot compile. */
function prepare(schema: unknown): unknown {
  if (Array.isArray(schema)) return schema.map(prepare);
  if (typeof schema !== "object" || schema === null) return schema;
  const copy: Record<string, unknown> = {};
  for (const [keyword, value] of Object.entries(schema)) {
    if (keyword === "format" && typeof value === "string") continue;
    if (keyword === "pattern" && typeof value === "string" && !compiled(value)) continue;
    if (keyword === "patternProperties" && typeof value === "object" && value !== null) {
      const usable = Object.entries(value).filter(([pattern]) => compiled(pattern));
      copy[keyword] = Object.fromEntries(usable.map(([pattern, inner]) => [pattern, prepare(inner)]));
      continue;
    }
    const isData = keyword === "const" || keyword === "enum" || keyword === "default" || keyword === "examples";
    copy[keyword] = isData ? value : prepare(value);
  }
  return copy;
}

class Explainer {
  constructor(
    private readonly schema: unknown,
    private readonly value: unknown,
  ) {}

  explain(units: OutputUnit[]): FoundProblem[] {
    const problems: FoundProblem[] = [];
    const told = new Set<string>();
    for (let index = 0; index < units.length; index++) {
      const unit = units[index] as OutputUnit;
      const isUnion = unit.keyword === "anyOf" || unit.keyword === "oneOf";
      const below = isUnion || isClosed(unit.keyword) ? this.below(units, index) : 0;
      const found = isUnion
        ? this.union(unit, units.slice(index + 1, index + 1 + below))
        : this.single(unit, units, index);
      if (isUnion || (found.length > 0 && isClosed(unit.keyword))) index += below;
      for (const problem of found) {
        const key = `${problem.pointer} ${problem.detail}`;
        if (!told.has(key)) problems.push(problem);
        told.add(key);
      }
    }
    return inOrder(problems);
  }

  /** The number of following units that belong to a unit. */
  private below(units: OutputUnit[], index: number): number {
    const prefix = `${units[index]?.keywordLocation}`;
    let count = 0;
    while (units[index + 1 + count]?.keywordLocation.startsWith(prefix)) count++;
    return count;
  }

  private single(unit: OutputUnit, units: OutputUnit[], index: number): FoundProblem[] {
    const { keyword } = unit;
    if (CONTAINERS.has(keyword)) return [];
    if (keyword === "false" && isClosed(units[index - 1]?.keyword ?? "")) return []; // reported with its object
    const pointer = unit.instanceLocation.replace(/^#/, "");
    const rule = this.rule(unit.keywordLocation);
    const value = atPointer(this.value as Json, pointer);
    if (isClosed(keyword)) {
      if (rule !== false) return keyword === "propertyNames" ? [this.named(pointer, keyword, unit)] : [];
      return [{ pointer, detail: messageOf({ keyword, rule, value, names: this.extraNames(units, index) }) }];
    }
    if (keyword === "required" || keyword === "dependentRequired") return [this.named(pointer, keyword, unit)];
    return [{ pointer, detail: messageOf({ keyword, rule, value }) }];
  }

  private named(pointer: string, keyword: string, unit: OutputUnit): FoundProblem {
    return { pointer, detail: messageOf({ keyword, rule: undefined, value: undefined, names: [nameIn(unit)] }) };
  }

  /** The properties that a closed object does not allow: one unit of the same place for each. */
  private extraNames(units: OutputUnit[], index: number): string[] {
    const unit = units[index] as OutputUnit;
    const same = units.filter(
      (each) => each.keywordLocation === unit.keywordLocation && each.instanceLocation === unit.instanceLocation,
    );
    return [...new Set(same.map(nameIn))];
  }

  private union(unit: OutputUnit, inner: OutputUnit[]): FoundProblem[] {
    const pointer = unit.instanceLocation.replace(/^#/, "");
    const value = atPointer(this.value as Json, pointer);
    if (unit.keyword === "oneOf" && !/\(0 matches\)/.test(unit.error))
      return [{ pointer, detail: show(value) + MANY_MATCH }];
    const rule = this.rule(unit.keywordLocation);
    const count = Array.isArray(rule) ? rule.length : 0;
    const branches = Array.from({ length: count }, (_, index) =>
      inner.filter(
        (each) =>
          each.keywordLocation.startsWith(`${unit.keywordLocation}/${index}/`) ||
          each.keywordLocation === `${unit.keywordLocation}/${index}`,
      ),
    );
    const best = branches
      .filter((branch) => branch.length > 0)
      .sort((left, right) => this.compare(left, right, unit))[0];
    if (!best || typeUnit(best, unit)) {
      const asked = branches.map((branch) => {
        const type = typeUnit(branch, unit);
        return type ? typeNames([this.rule(type.keywordLocation)].flat().map(String)) : undefined;
      });
      return [{ pointer, detail: unionMessage(value, count, asked) }];
    }
    const note = count > 1 ? ` (in the closest of ${count} forms)` : "";
    return this.explain(best).map((problem) => ({
      ...problem,
      detail: /\(in the closest of \d+ forms\)$/.test(problem.detail) ? problem.detail : problem.detail + note,
    }));
  }

  private compare(left: OutputUnit[], right: OutputUnit[], unit: OutputUnit): number {
    const [one, other] = [this.closeness(left, unit), this.closeness(right, unit)];
    for (let index = 0; index < one.length; index++) {
      const difference = (other[index] as number) - (one[index] as number);
      if (difference) return difference;
    }
    return 0;
  }

  private closeness(branch: OutputUnit[], unit: OutputUnit): number[] {
    const depth = pointerParts(unit.instanceLocation).length;
    const literal = branch.some(
      (each) =>
        (each.keyword === "const" || each.keyword === "enum") &&
        pointerParts(each.instanceLocation).length <= depth + 1,
    );
    const leaves = branch.filter((each) => !CONTAINERS.has(each.keyword)).length;
    return [typeUnit(branch, unit) ? 0 : 1, literal ? 0 : 1, -leaves];
  }

  /** The value of the keyword at a location, through references. */
  private rule(location: string): unknown {
    let node: unknown = this.schema;
    for (const part of pointerParts(location)) {
      if (typeof node !== "object" || node === null) return undefined;
      const next = (node as Record<string, unknown>)[part];
      node = part === "$ref" && typeof next === "string" ? this.target(next) : next;
    }
    return node;
  }

  private target(reference: string): unknown {
    let node: unknown = this.schema;
    for (const part of pointerParts(decodeURIComponent(reference)))
      node = (node as Record<string, unknown> | undefined)?.[part];
    return node;
  }
}

/** Return the property of an error. */
function nameIn(unit: OutputUnit): string {
  return /(?:property (?:name )?|have )"([^"]*)"(?:\.$| does)/is.exec(unit.error)?.[1] ?? "";
}

function isClosed(keyword: string): boolean {
  return ["additionalProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames"].includes(keyword);
}

function typeUnit(branch: OutputUnit[], unit: OutputUnit): OutputUnit | undefined {
  return branch.find((each) => each.keyword === "type" && each.instanceLocation === unit.instanceLocation);
}

/** Sort problems: those of parts before those of their parents. */
function inOrder(problems: FoundProblem[]): FoundProblem[] {
  const ranks = new Map<string, number>();
  const keys = problems.map(({ pointer }) => {
    const key: number[] = [];
    let prefix = "";
    for (const part of pointer.split("/").slice(1)) {
      prefix += `/${part}`;
      if (!ranks.has(prefix)) ranks.set(prefix, ranks.size);
      key.push(ranks.get(prefix) as number);
    }
    return [...key, Number.POSITIVE_INFINITY];
  });
  const indexes = problems.map((_, index) => index);
  indexes.sort((left, right) => {
    const [one, other] = [keys[left] as number[], keys[right] as number[]];
    for (let index = 0; index < Math.min(one.length, other.length); index++) {
      if (one[index] !== other[index]) return (one[index] as number) < (other[index] as number) ? -1 : 1;
    }
    return left - right;
  });
  return indexes.map((index) => problems[index] as FoundProblem);
}
