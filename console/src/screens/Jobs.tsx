/** Jobs: state, attempts, next attempt, age; retry and cancel what is chosen. */

import { useEffect, useState } from "preact/hooks";
import { to } from "../addresses";
import { api, RequestError } from "../api/client";
import type { Job, Problem } from "../api/types";
import { Button } from "../components/Button";
import { Segmented } from "../components/Choices";
import { Empty, Failed, Loading, Notice } from "../components/Notice";
import { age, clock, plural } from "../format";
import { route } from "../router";
import { jobs, loadJobs } from "../state/live";
import { can, isLost, recoveries } from "../state/session";

const BAD = new Set(["dead", "failed"]);
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
  if (!can("jobs")) return <Empty command="ops jobs ls">This server keeps no jobs, or you may not see them.</Empty>;
  const act = async (action: "retry" | "cancel") => {
    const failed: string[] = [];
    for (const id of chosen) {
      await api.changeJob(id, action).catch((error: unknown) => {
        if (!(error instanceof RequestError)) throw error;
        failed.push(`${id}: ${error.message}`);
      });
    }
    setRefusals(failed);
    setChosen(new Set());
    await load();
  };
  const all = jobs.value;
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
                .join(", ") || "Durable calls"}
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
        <span class="t2">{chosen.size > 0 ? `${chosen.size} chosen` : "Choose jobs to retry or cancel them"}</span>
        <span class="right row">
          <Button icon="again" disabled={chosen.size === 0} onClick={() => void act("retry")}>
            Retry
          </Button>
          <Button look="d" icon="stop" disabled={chosen.size === 0} onClick={() => void act("cancel")}>
            Cancel
          </Button>
        </span>
      </div>
      {problem && !all ? (
        <Failed problem={problem} retry={() => void load()} />
      ) : !all ? (
        <Loading />
      ) : shown.length === 0 ? (
        <Empty command="ops call shop.quote item=tea --submit">There is no job.</Empty>
      ) : (
        <JobTable jobs={shown} chosen={chosen} toggle={toggle} />
      )}
    </>
  );
}

function JobTable(props: { jobs: Job[]; chosen: ReadonlySet<string>; toggle: (id: string) => void }) {
  return (
    <div class="virtual">
      <table>
        <thead>
          <tr>
            <th>
              <span class="hidden">Chosen</span>
            </th>
            <th>Job</th>
            <th>Operation</th>
            <th>State</th>
            <th class="num">Attempts</th>
            <th>Next attempt</th>
            <th class="num">Age</th>
          </tr>
        </thead>
        <tbody>
          {props.jobs.map((job) => (
            <tr key={job.id} class={BAD.has(job.state) ? "bad" : ""}>
              <td>
                <input
                  type="checkbox"
                  aria-label={`Choose ${job.id}`}
                  checked={props.chosen.has(job.id)}
                  onChange={() => props.toggle(job.id)}
                />
              </td>
              <td class="m">{job.id}</td>
              <td>
                <a class="m" href={to.operation(job.operationId)}>
                  {job.operationId}
                </a>
              </td>
              <td class={BAD.has(job.state) ? "err" : ""}>
                {job.state} {job.code && <code>{job.code}</code>}
              </td>
              <td class="num">{job.attempts}</td>
              <td class="t2">{job.nextAt ? clock(job.nextAt) : ""}</td>
              <td class="num t2">{age(job.createdAt)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
