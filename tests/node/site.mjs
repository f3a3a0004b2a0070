// Walk through the documentation site as a reader does, and print what a browser saw: `node site.mjs URL`.
import { launch, open } from "./browser.mjs";

const browser = await launch();
const { page, seen } = await open(browser, process.argv[2]);
const report = { start: await page.locator("h1").first().innerText() };

const results = page.locator("a[href*='guide/']:has-text('deadline'):visible");
for (let left = 5; left > 0; left -= 1) {
  // On a busy machine the key may come before the page listens for it.
  await page.waitForLoadState("networkidle");
  await page.keyboard.press("/");
  await page.keyboard.type("deadline");
  const found = await results.first().waitFor({ timeout: 20_000 }).then(() => true, () => false);
  if (found || left === 1) break;
  await page.reload();
}
report.found = await results.evaluateAll((links) => links.map((link) => new URL(link.href).pathname));
if (process.argv[3]) await page.screenshot({ path: process.argv[3] });

await page.goto(new URL("guide/hub/", process.argv[2]).href);
report.guide = await page.locator("h1").first().innerText();
report.code = await page.locator("pre code").count();
await page.waitForLoadState("networkidle");
console.log(JSON.stringify({ ...report, ...seen }));
await browser.close();
