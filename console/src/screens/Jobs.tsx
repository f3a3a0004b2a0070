/** Jobs: state, attempts, next attempt, age; retry and cancel selected jobs. */

import { useEffect, useState } from "preact/hooks";
import { to } from "../addresses";
import { api, RequestError } from "../api/client";
import type { Job, Problem } from "../api/types";
import { Button } from "../components/Button";
import { Segmented } from "../components/Choices";
import { Empty, Failed, Loading, Notice } from "../components/Notice";
import { age, plural } from "../format";
import { route } from "../router";
import { jobs, loadJobs } from "../state/live";
import { can, exampleCall, isLost, recoveries } from "../state/session";

/** Job states that can be retried (shown in red), and states that can be cancelled. */
const BAD = new Set(["dead", "failed"]);
const OPEN = new Set(["queued", "running"]);
const REFRESH_MS = 5_000;

export function Jobs() {
  const [problem, setProblem] = useState<Problem | undefined>();
  const [refusals, setRefusals] = useState<string[]>([]);
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set(route.value.rest ? [route.value.rest] : []));
  const [state, setState] = useState("all");
  const load = () =>
    loadJobs().then(
      () => setProblem(undefined),
      (error: unknown) => {
        if (!(error instanceof RequestError)) throw error;
        setProblem(error.problem);
      },
    );
  useEffect(() => {
    document.title = "Jobs – operations";
    void load();
    const timer = setInterval(() => !isLost.peek() && !document.hidden && void load(), REFRESH_MS);
    return () => clearInterval(timer);
  }, [recoveries.value, can("jobs")]);
  if (!can("jobs"))
    return <Empty command="ops jobs ls">This server stores no jobs, or you are not permitted to see them.</Empty>;
  const all = jobs.value;
  const among = (states: Set<string>) => all?.filter((job) => chosen.has(job.id) && states.has(job.state)) ?? [];
  const act = async (action: "retry" | "cancel") => {
    const failed: string[] = [];
    for (const { id } of among(action === "retry" ? BAD : OPEN)) {
      await api.changeJob(id, action).catch((error: unknown) => {
        if (!(error instanceof RequestError)) throw error;
        failed.push(`${id}: ${error.message}`);
      });
    }
    setRefusals(failed);
    setChosen(new Set());
    await load();
  };
  const states = [...new Set(all?.map((job) => job.state) ?? [])].sort();
  const shown = all?.filter((job) => state === "all" || job.state === state) ?? [];
  const toggle = (id: string) =>
    setChosen((old) => (old.has(id) ? new Set([...old].filter((each) => each !== id)) : new Set([...old, id])));
  return (
    <>
      <header class="head flat">
        <div class="row">
          <div class="grow">
            <h1>Jobs</h1>
            <div class="sub">
              {states
                .map((each) => plural(all?.filter((job) => job.state === each).length ?? 0, each, each))
                .join(", ") || "Calls that run later"}
            </div>
          </div>
          <Segmented
            label="State"
            value={state}
            choose={setState}
            choices={["all", ...states].map((id) => ({ id, label: id }))}
          />
        </div>
      </header>
      {refusals.length > 0 && <Notice look="e">{refusals.join("; ")}</Notice>}
      <div class="bar lined">
        <span class="t2">{chosen.size > 0 ? `${chosen.size} selected` : "Select jobs to retry or cancel"}</span>
        <span class="right row">
          <Button icon="again" disabled={isLost.value || among(BAD).length === 0} onClick={() => void act("retry")}>
            Retry
          </Button>
          <Button
            look="d"
            icon="stop"
            disabled={isLost.value || among(OPEN).length === 0}
            onClick={() => void act("cancel")}
          >
            Cancel
          </Button>
        </span>
      </div>
      {problem && !all ? (
        <Failed problem={problem} retry={() => void load()} />
      ) : !all ? (
        <Loading />
      ) : shown.length === 0 ? (
        <Empty command={exampleCall("jobs submit")}>There are no jobs.</Empty>
      ) : (
        <JobTable jobs={shown} chosen={chosen} toggle={toggle} chooseAll={(ids) => setChosen(new Set(ids))} />
      )}
    </>
  );
}

function JobTable(props: {
  jobs: Job[];
  chosen: ReadonlySet<string>;
  toggle: (id: string) => void;
  chooseAll: (ids: string[]) => void;
}) {
  const { jobs, chosen } = props;
  const hasAll = jobs.every((job) => chosen.has(job.id));
  return (
    <div class="virtual">
      <table>
        <thead>
          <tr>
            <th>
              <label class="check">
                <input
                  type="checkbox"
                  aria-label="Choose all"
                  checked={hasAll}
                  onChange={() => props.chooseAll(hasAll ? [] : jobs.map((job) => job.id))}
                />
              </label>
            </th>
            <th>Job</th>
            <th>Operation</th>
            <th>State</th>
            <th>Progress</th>
            <th class="num">Attempts</th>
            <th>Caller</th>
            <th class="num">Age</th>
          </tr>
        </thead>
        <tbody>
          {jobs.map((job) => (
            <JobRow key={job.id} job={job} isChosen={chosen.has(job.id)} toggle={() => props.toggle(job.id)} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function JobRow(props: { job: Job; isChosen: boolean; toggle: () => void }) {
  const { job } = props;
  const isBad = BAD.has(job.state);
  return (
    <tr class={`${isBad ? "bad" : ""} ${props.isChosen ? "on" : ""}`} data-job={job.id}>
      <td>
        <label class="check">
          <input type="checkbox" aria-label={`Choose ${job.id}`} checked={props.isChosen} onChange={props.toggle} />
        </label>
      </td>
      <td class="m">
        <a href={to.job(job.id)} title={job.id}>
          {job.id.length > 16 ? `${job.id.slice(0, 8)}…${job.id.slice(-4)}` : job.id}
        </a>
      </td>
      <td>
        <a class="m" href={to.operation(job.operationId)}>
          {job.operationId}
        </a>
      </td>
      <td class={isBad ? "err" : ""} title={job.message}>
        <span class="row">
          <span class={`dot ${isBad ? "e" : job.state === "running" ? "a" : job.state === "done" ? "" : "o"}`} />
          {job.state} {job.code && <code>{job.code}</code>}
        </span>
        {job.message && <div class="t2 cut">{job.message}</div>}
      </td>
      <td>{job.progress && <Progress job={job} />}</td>
      <td class="num">{job.attempts}</td>
      <td class="t2">{job.owner ?? ""}</td>
      <td class="num t2">{age(job.createdAt)}</td>
    </tr>
  );
}

function Progress(props: { job: Job }) {
  const { value, total, message } = props.job.progress ?? { value: 0 };
  return (
    <span class="row">
      {total !== undefined && <progress max={total} value={Math.min(value, total)} aria-label="Progress" />}
      <span class="n">{total === undefined ? value : `${Math.floor((100 * value) / (total || 1))} %`}</span>
      {message && <span class="t2 cut">{message}</span>}
    </span>
  );
}
