// Look at jobs and workers of a bus in the console, and print what a browser saw: `node walk_bus.mjs URL TOKEN`.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { launch } from "../node/browser.mjs";

const require = createRequire(new URL("../node/", import.meta.url));
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const [url, token] = process.argv.slice(2);
const report = { errors: [], axe: [] };

const browser = await launch();
const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, locale: "en-GB" });
const page = await context.newPage();
page.setDefaultTimeout(Number(process.env.CONSOLE_TIMEOUT ?? 60_000)); // for a busy machine
page.on("pageerror", (error) => report.errors.push(String(error.stack)));

async function axe(screen) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const serious = violations.filter((each) => ["serious", "critical"].includes(each.impact));
  report.axe.push(...serious.map((each) => `${screen}: ${each.id}`));
}

const submit = (input) =>
  page.evaluate(
    async ([body, key]) => {
      const headers = { Authorization: `Bearer ${key}`, "Content-Type": "application/json", Prefer: "respond-async" };
      const response = await fetch("/math/square", { method: "POST", headers, body: JSON.stringify(body) });
      return (await response.json()).id;
    },
    [input, token],
  );

try {
  await page.goto(`${url}workers`);
  await page.locator("#token").fill(token);
  await page.keyboard.press("Enter");
  await page.locator("tbody tr", { hasText: "math-1" }).waitFor();
  report.worker = await page.locator("tbody tr", { hasText: "math-1" }).innerText();
  await page.goto(`${url}jobs`);
  await page.locator(".empty").waitFor();
  const [good, poison] = [await submit({ value: 3 }), await submit({ value: -1 })];
  await page.locator(`tr[data-job="${good}"]`, { hasText: "done" }).waitFor();
  await page.locator(`tr[data-job="${poison}"]`, { hasText: "dead" }).waitFor();
  report.dead = await page.locator(`tr[data-job="${poison}"]`).innerText();
  await axe("jobs");
  await page.getByLabel(`Choose ${poison}`).check();
  await page.getByRole("button", { name: "Retry" }).click();
  await page.locator(`tr[data-job="${poison}"]`, { hasText: /queued|running/ }).waitFor();
  await page.locator(`tr[data-job="${poison}"]`, { hasText: "dead" }).waitFor();
  report.states = await page.locator(".head .sub").innerText();
  await page.goto(`${url}workers`);
  await page.locator("tbody tr", { hasText: "lost" }).first().waitFor();
  report.lost = await page.locator("tbody tr", { hasText: "lost" }).first().innerText();
  await axe("workers");
} catch (error) {
  report.failed = error.message;
  await page.screenshot({ path: process.env.CONSOLE_SCREENSHOT ?? "/tmp/console-failed.png" });
}
console.log(JSON.stringify(report));
await browser.close();
process.exit(0);
