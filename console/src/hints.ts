/** Hints for errors: the server's hint, else one per code. */

import type { Problem } from "./api/types";

const HINTS: Record<string, string> = {
  VALIDATION_ERROR: "The input is invalid and the operation did not run. The affected fields are marked in the form.",
  OPERATION_NOT_FOUND: "The operation is unknown, or this identity may not call it.",
  ACCESS_DENIED: "This identity lacks permissions. Sign in with a token that has the scopes named above.",
  EXECUTION_ERROR: "The operation ran and failed. The server's log has the details.",
  TIMEOUT: "The deadline passed. Choose a longer deadline below the input, or request less data.",
  UNAVAILABLE: "The server or the worker could not be reached. Try again later.",
  ABORTED: "The call was cancelled.",
  UNKNOWN_ERROR: "The server's log has the details.",
};

export function hintFor(problem: Problem): string {
  const { details = {} } = problem;
  if (typeof details.hint === "string") return details.hint;
  const status = details.statusCode;
  if (status === 401 || status === 403)
    return "The upstream API rejected the server's credentials: check the source's auth in operations.toml.";
  if (typeof status === "number" && status >= 400 && status < 500) {
    return "The input is valid, but the upstream API rejected it. The same input will fail again.";
  }
  if (typeof status === "number" && status >= 500) return "The upstream API failed. Try again later.";
  return HINTS[problem.code] ?? "The operation declares this error; see its details.";
}

const EXECUTED: Record<string, string> = { no: "it did not run", unknown: "it may have run", yes: "it ran" };

export function executedText(problem: Problem): string | undefined {
  return problem.executed ? EXECUTED[problem.executed] : undefined;
}

/** Return the upstream request that a message names. */
export function upstreamOf(problem: Problem): { request: string; status: number } | undefined {
  const status = problem.details?.statusCode;
  if (typeof status !== "number") return undefined;
  const named = /\b(GET|POST|PUT|PATCH|DELETE|HEAD|OPTIONS) (\S+)/.exec(problem.detail);
  return { request: named ? `${named[1]} ${named[2]}` : "", status };
}
