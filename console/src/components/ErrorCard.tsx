/** An error: message, code, path, upstream, hint, actions. */

import { to } from "../addresses";
import type { Problem, Span } from "../api/types";
import { executedText, hintFor, upstreamOf } from "../hints";
import { writeJson } from "../json/text";
import { CopyButton } from "./Button";
import { Icon } from "./Icon";

export function ErrorCard(props: { problem: Problem; path?: Span[] | undefined }) {
  const { problem, path } = props;
  const upstream = upstreamOf(problem);
  const executed = executedText(problem);
  const scopes = scopesOf(problem);
  return (
    <div class="errc" role="alert">
      <div class="top">
        <span class="err">
          <Icon name="error" />
        </span>
        <span class="msgt">{problem.detail}</span>
        <CopyButton label="Copy error" text={() => writeJson(problem, 2)}>
          Copy error
        </CopyButton>
      </div>
      <dl>
        <dt>Code</dt>
        <dd>
          <code class="err">{problem.code}</code>
          {problem.status > 0 && <span class="t3"> HTTP {problem.status}</span>}
        </dd>
        {problem.errors && problem.errors.length > 0 && (
          <>
            <dt>Problems</dt>
            <dd>
              {problem.errors.map((each) => (
                <div key={each.pointer + each.detail}>
                  <code>{each.pointer || "(input)"}</code> {each.detail}
                </div>
              ))}
            </dd>
          </>
        )}
        {path && path.length > 1 && (
          <>
            <dt>Call path</dt>
            <dd>
              {path.map((span, index) => (
                <span key={span.requestId}>
                  {index > 0 && <span class="t3"> → </span>}
                  <span class={`m ${index === path.length - 1 ? "err" : ""}`}>
                    {span.operationId ?? "not visible to you"}
                  </span>
                </span>
              ))}
            </dd>
          </>
        )}
        {upstream && (
          <>
            <dt>Upstream</dt>
            <dd>
              <code>{upstream.request}</code> <span class="chip e m">{upstream.status}</span>
            </dd>
          </>
        )}
        {scopes && (
          <>
            <dt>Scopes</dt>
            <dd>
              <code>{scopes}</code>
            </dd>
          </>
        )}
        {executed && (
          <>
            <dt>Executed</dt>
            <dd>{executed}</dd>
          </>
        )}
        <dt>Hint</dt>
        <dd>{hintFor(problem)}</dd>
        {problem.requestId && (
          <>
            <dt>Request</dt>
            <dd>
              <a class="acc m" href={to.call(problem.requestId)}>
                {problem.requestId}
              </a>
            </dd>
          </>
        )}
      </dl>
    </div>
  );
}

function scopesOf(problem: Problem): string | undefined {
  const { details = {} } = problem;
  const lists = [details.missingScopes, details.missingAny, details.missing_scopes].filter(Array.isArray).flat();
  return lists.length > 0 ? lists.join(" ") : undefined;
}

/** Calls from the outermost to the origin of the error. */
export function failedPath(spans: Span[]): Span[] {
  const failed = spans.filter((span) => span.outcome === "failed");
  const parents = new Set(failed.map((span) => span.parentRequestId));
  const deepest = failed.find((span) => !parents.has(span.requestId));
  const path: Span[] = [];
  let next: Span | undefined = deepest;
  while (next && path.length < 50) {
    path.unshift(next);
    const above: string | undefined = next.parentRequestId;
    next = above ? spans.find((span) => span.requestId === above) : undefined;
  }
  return path;
}
