// Measure the console in a browser: `node figures.mjs URL` prints milliseconds, megabytes and events as JSON.
import { readFileSync } from "node:fs";
import { launch } from "../node/browser.mjs";
import { summary, tasksDuring } from "./main_thread.mjs";

const url = process.argv[2];
const browser = await launch({ isUsual: true });
const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, locale: "en-GB" });
const page = await context.newPage();
page.setDefaultTimeout(60_000);
const figures = {};
/** Add the tasks of the main thread during an action to the figures. */
const measure = async (name, action) => {
  const { result, tasks } = await tasksDuring(page, action);
  figures[name] = { ...summary(tasks), ...result };
};
const field = (pointer) => page.locator(`[id="field:${pointer}"]`);
const received = async () =>
  Number((await page.locator('[data-testid="received"]').first().innerText()).replace(/\D/g, ""));
const devtools = await browser.newBrowserCDPSession();
/** The memory of the page with its worker in megabytes: of the largest process that renders pages. */
const memory = async () => {
  const { processInfo } = await devtools.send("SystemInfo.getProcessInfo");
  const sizes = processInfo
    .filter(({ type }) => type === "renderer")
    .map(({ id }) => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${id}/status`, "utf8"))?.[1]));
  return Math.round(Math.max(...sizes) / 1_000);
};
const inspector = await context.newCDPSession(page);
/** The JavaScript objects that the page keeps, in megabytes: after a garbage collection. */
const heap = async () => {
  await inspector.send("HeapProfiler.collectGarbage");
  return Math.round((await inspector.send("Runtime.getHeapUsage")).usedSize / 100_000) / 10;
};
const seconds = (count) => page.waitForTimeout(count * 1_000);

await page.goto(url);
await page.locator("#token").fill("maria-token");
await measure("catalogue", async () => {
  const asked = Date.now();
  await page.keyboard.press("Enter");
  await page.locator(".op").first().waitFor();
  return { listed: Date.now() - asked };
});

await measure("search", async () => {
  await page.locator("#main").focus();
  await page.keyboard.press("/");
  const keys = [];
  for (const key of "create issue comment") {
    const spent = await page.evaluate(async (key) => {
      const input = document.activeElement;
      const began = performance.now();
      input.value += key;
      input.dispatchEvent(new InputEvent("input", { bubbles: true }));
      await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
      return performance.now() - began;
    }, key);
    keys.push(Math.round(spent));
  }
  return { keys };
});

// The controls: a task of 80 ms is reported as one, and how long tasks take while the page has nothing to do.
await measure("control", () =>
  page.evaluate(() => {
    for (const until = performance.now() + 80; performance.now() < until; );
  }),
);
await measure("idle", () => seconds(3));

for (const shape of ["table", "tree", "text", "bytes"]) {
  await page.goto(`${url}op/shop.large`);
  await field("/shape").or(page.getByRole("radiogroup", { name: "shape" })).first().waitFor();
  await page.getByRole("radio", { name: shape, exact: true }).click();
  await measure(shape, async () => {
    await page.keyboard.press("Control+Enter");
    await page.locator('[data-outcome]:not([data-outcome="running"])').waitFor();
    await seconds(1);
    for (let screen = 0; screen < 20; screen += 1) {
      await page.locator(".pane .body").last().hover();
      await page.mouse.wheel(0, 2_000);
      await page.waitForTimeout(20);
    }
    return { outcome: await page.locator("[data-outcome]").getAttribute("data-outcome"), memory: await memory() };
  });
}

await page.goto(`${url}op/shop.temperatures`);
await field("/per_second").fill("5000");
await measure("stream", async () => {
  await page.keyboard.press("Control+Enter");
  await page.locator(".ev:not(.hd)").first().waitFor();
  const first = await received();
  const began = Date.now();
  const memories = [];
  const heaps = [];
  for (let turn = 0; turn < 10; turn += 1) {
    if (turn === 3) await page.getByLabel("Filter events").fill("celsius >= 14");
    if (turn === 5) await page.getByLabel("Filter events").fill("");
    await seconds(3);
    memories.push(await memory());
    heaps.push(await heap());
  }
  return { rate: Math.round(((await received()) - first) / ((Date.now() - began) / 1_000)), memories, heaps };
});
process.stdout.write(`${JSON.stringify(figures)}\n`);
await browser.close();
