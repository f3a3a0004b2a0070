/** The audit log: callers, operations and outcomes, with filters and export. */

import { useEffect, useState } from "preact/hooks";
import { to } from "../addresses";
import { api, RequestError } from "../api/client";
import type { AuditEntry, Problem } from "../api/types";
import { Button, download } from "../components/Button";
import { Empty, Failed, Loading } from "../components/Notice";
import { Rows } from "../components/VirtualList";
import { duration, moment } from "../format";
import { route, setQuery } from "../router";
import { can, exampleCall, recoveries } from "../state/session";

const FILTERS = ["caller", "operation", "outcome", "protocol"] as const;

export function Audit() {
  const { query } = route.value;
  const given = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? undefined]));
  const [entries, setEntries] = useState<AuditEntry[] | undefined>();
  const [next, setNext] = useState<string | undefined>();
  const [problem, setProblem] = useState<Problem | undefined>();
  const load = (cursor?: string) =>
    api.audit({ ...given, cursor, limit: 200 }).then(
      (page) => {
        setProblem(undefined);
        setEntries((old) => (cursor ? [...(old ?? []), ...page.entries] : page.entries));
        setNext(page.next);
      },
      (error: unknown) => {
        if (!(error instanceof RequestError)) throw error;
        setProblem(error.problem);
      },
    );
  useEffect(() => {
    document.title = "Audit – operations";
    if (can("audit")) void load();
  }, [JSON.stringify(given), recoveries.value, can("audit")]);
  if (!can("audit")) return <Empty>The audit log requires the scope operations:watch.</Empty>;
  return (
    <>
      <header class="head flat">
        <div class="row">
          <div class="grow">
            <h1>Audit</h1>
            <div class="sub">External calls, newest first</div>
          </div>
          <Button
            icon="download"
            disabled={!entries?.length}
            onClick={() => download("audit.json", new Blob([JSON.stringify(entries, null, 2)]))}
          >
            Export
          </Button>
        </div>
      </header>
      <div class="bar lined">
        {FILTERS.map((name) => (
          <input
            key={name}
            class="in small"
            aria-label={name}
            placeholder={name}
            value={given[name] ?? ""}
            onChange={(event) => setQuery({ [name]: event.currentTarget.value || undefined })}
          />
        ))}
      </div>
      {problem && !entries ? (
        <Failed problem={problem} retry={() => void load()} />
      ) : !entries ? (
        <Loading />
      ) : entries.length === 0 ? (
        <Empty command={exampleCall()}>No calls recorded.</Empty>
      ) : (
        <div class="virtual">
          <table>
            <thead>
              <tr>
                <th>Time</th>
                <th>Caller</th>
                <th>Operation</th>
                <th>Protocol</th>
                <th>Outcome</th>
                <th class="num">Duration</th>
              </tr>
            </thead>
            <Rows
              count={entries.length}
              row={(index) => {
                const entry = entries[index] as AuditEntry;
                return (
                  <tr key={entry.requestId ?? index} class={entry.outcome === "failed" ? "bad" : ""}>
                    <td class="n">{moment(entry.at)}</td>
                    <td>{entry.caller ?? <span class="t3">anonymous</span>}</td>
                    <td>
                      <a class="m" href={entry.requestId ? to.call(entry.requestId) : to.operation(entry.operationId)}>
                        {entry.operationId}
                      </a>
                    </td>
                    <td class="t2">{entry.protocol}</td>
                    <td class={entry.outcome === "failed" ? "err" : ""}>
                      {entry.outcome} {entry.code && <code>{entry.code}</code>}
                    </td>
                    <td class="num">{duration(entry.durationMs)}</td>
                  </tr>
                );
              }}
            />
          </table>
          {next && (
            <div class="bar">
              <Button onClick={() => void load(next)}>Older</Button>
            </div>
          )}
        </div>
      )}
    </>
  );
}
