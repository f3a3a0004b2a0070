// Tasks of a page's main thread, from Chromium's own trace: each with its duration and the CPU time that it used.
// A task that waits for a core, or for another thread, has a long duration and little CPU time.
// The browser has a process for the page: in one process, a task of the trace may be a batch of tasks.
const MAIN_THREAD = "CrRendererMain";
const TASK = "ThreadControllerImpl::RunTask";

/** Run an action and return the tasks of the main thread meanwhile, in milliseconds, the longest first. */
export async function tasksDuring(page, action) {
  const client = await page.context().newCDPSession(page);
  const events = [];
  client.on("Tracing.dataCollected", ({ value }) => events.push(...value));
  const complete = new Promise((resolve) => client.once("Tracing.tracingComplete", resolve));
  await client.send("Tracing.start", {
    transferMode: "ReportEvents",
    traceConfig: { includedCategories: ["toplevel", "__metadata"], excludedCategories: ["*"] },
  });
  const result = await action();
  await client.send("Tracing.end");
  await complete;
  await client.detach();
  const threadOf = ({ pid, tid }) => `${pid} ${tid}`;
  const mains = new Set(
    events
      .filter((event) => event.name === "thread_name" && event.args.name === MAIN_THREAD)
      .map(threadOf),
  );
  const tasks = events
    .filter((event) => event.ph === "X" && event.name === TASK && mains.has(threadOf(event)))
    .map((event) => ({ duration: event.dur / 1_000, cpu: (event.tdur ?? 0) / 1_000 }));
  return { result, tasks };
}

/** The longest duration and the most CPU time of a task, and the CPU time of all. */
export function summary(tasks) {
  const most = (name) => Math.round(Math.max(0, ...tasks.map((task) => task[name])));
  return {
    tasks: tasks.length,
    longest: most("duration"),
    cpu: most("cpu"),
    total: Math.round(tasks.reduce((sum, task) => sum + task.cpu, 0)),
  };
}
