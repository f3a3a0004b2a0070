// Measure the console in a browser: `node figures.mjs URL` prints milliseconds, megabytes and events as JSON.
import { launch } from "../node/browser.mjs";

const url = process.argv[2];
const browser = await launch();
const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, locale: "en-GB" });
const page = await context.newPage();
page.setDefaultTimeout(60_000);
await page.addInitScript(() => {
  // How late a timer is: no event of the page is handled for so long.
  const every = 5;
  let last = performance.now();
  window.longest = 0;
  setInterval(() => {
    const now = performance.now();
    window.longest = Math.max(window.longest, now - last - every);
    last = now;
  }, every);
});
const figures = {};
/** The longest time since the last call in which the page handled nothing, in milliseconds. */
const longestTask = () =>
  page.evaluate(() => {
    const taken = window.longest;
    window.longest = 0;
    return Math.round(taken);
  });
const field = (pointer) => page.locator(`[id="field:${pointer}"]`);
const received = async () =>
  Number((await page.locator('[data-testid="received"]').first().innerText()).replace(/\D/g, ""));
const heap = () => page.evaluate(() => Math.round(performance.memory.usedJSHeapSize / 1e6));

await page.goto(url);
await page.locator("#token").fill("maria-token");
const asked = Date.now();
await page.keyboard.press("Enter");
await page.locator(".op").first().waitFor();
figures.listed = Date.now() - asked;
figures.listedTask = await longestTask();

await page.locator("#main").focus();
await page.keyboard.press("/");
figures.keys = [];
for (const key of "create issue comment") {
  const spent = await page.evaluate(async (key) => {
    const input = document.activeElement;
    const began = performance.now();
    input.value += key;
    input.dispatchEvent(new InputEvent("input", { bubbles: true }));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    return performance.now() - began;
  }, key);
  figures.keys.push(Math.round(spent));
}
await longestTask();

await page.goto(`${url}op/shop.large`);
await page.locator(".footbar .btn.p").waitFor();
await longestTask();
await page.keyboard.press("Control+Enter");
await page.locator('[data-outcome]:not([data-outcome="running"])').waitFor();
await page.waitForTimeout(1_000);
figures.largeOutcome = await page.locator("[data-outcome]").getAttribute("data-outcome");
figures.largeTask = await longestTask();

await page.goto(`${url}op/shop.temperatures`);
await field("/per_second").fill("5000");
await longestTask();
await page.keyboard.press("Control+Enter");
await page.locator(".ev:not(.hd)").first().waitFor();
const first = await received();
const began = Date.now();
const heaps = [];
for (let second = 0; second < 8; second += 1) {
  await page.waitForTimeout(1_000);
  heaps.push(await heap());
}
figures.eventsPerSecond = Math.round(((await received()) - first) / ((Date.now() - began) / 1_000));
figures.streamTask = await longestTask();
figures.heaps = heaps;
process.stdout.write(`${JSON.stringify(figures)}\n`);
await browser.close();
