// Take pictures of the console: `node console.mjs URL FOLDER [docs|all]`.
import { launch } from "../../tests/node/browser.mjs";

const [url, folder, which = "docs"] = process.argv.slice(2);
const DOCS = ["operation", "error", "trace"];

async function walk(theme, size, suffix) {
  const browser = await launch(); // one browser for each walk, because a browser ends with its first context
  const context = await browser.newContext({ viewport: size, colorScheme: theme, locale: "en-GB", deviceScaleFactor: which === "all" ? 2 : 1 });
  const page = await context.newPage();
  const field = (pointer) => page.locator(`[id="field:${pointer}"]`);
  const isPhone = size.width < 640;
  const run = async () => {
    await page.locator(isPhone ? ".mbar .btn.p" : ".footbar .btn.p").click();
  };
  const take = async (name) => {
    if (which === "docs" && !DOCS.includes(name)) return;
    await page.waitForTimeout(400);
    await page.screenshot({ path: `${folder}/console-${name}${suffix}.png` });
    console.log(`${folder}/console-${name}${suffix}.png`);
  };

  await page.goto(url);
  await page.locator("#token").fill("maria-token");
  await page.keyboard.press("Enter");
  await page.locator(".op").first().waitFor();
  await page.goto(`${url}?source=github&q=review+comment`);
  await page.locator(".op mark").first().waitFor();
  await take("search");

  await page.goto(`${url}op/github.issues/create`);
  await field("/owner").fill("octo-org");
  await field("/repo").fill("storefront");
  await field("/title").fill("Checkout rejects postcodes with a space");
  for (const name of ["body", "labels", "assignees"]) await page.locator(".add", { hasText: name }).first().click();
  await field("/body").fill("Steps: add tea to the basket, enter “SW1A 1AA”, press Pay.\nExpected: the order is placed.");
  await page.getByRole("button", { name: "Add item" }).click();
  await field("/labels/0").fill("bug");
  await field("/assignees").fill("hubot");
  await page.keyboard.press("Enter");
  await run();
  await page.locator('[data-outcome="ok"]').waitFor();
  await page.locator('[role="treeitem"]').nth(3).click();
  await page.locator(".pane .body").first().evaluate((body) => body.scrollTo(0, 0));
  await take("operation");

  await page.goto(`${url}op/weather.forecast`);
  await field("/city").fill("Nowhere");
  await run();
  await page.locator(".errc").waitFor();
  await take("error");

  await page.goto(`${url}op/shop.temperatures`);
  await field("/per_second").fill("48");
  await run();
  await page.locator(".ev:not(.hd)").nth(8).waitFor();
  await page.waitForTimeout(2_000);
  await page.locator(".ev:not(.hd)").nth(5).click();
  await take("stream");

  await page.goto(`${url}op/shop.restock`);
  await run();
  await page.locator('[data-outcome="ok"]').waitFor();
  await page.getByRole("link", { name: "Trace" }).click();
  await page.locator(".wfrow").nth(8).waitFor();
  await page.locator(".wfrow:has(.terr)").first().click();
  await page.locator(".det").waitFor();
  await take("trace");

  for (const screen of ["calls", "workers", "metrics", "audit"]) {
    await page.goto(url + screen);
    await page.locator("tbody tr, .uplot").first().waitFor({ state: "attached" }); // the tables of charts are closed
    await take(screen);
  }
  await browser.close();
}

await walk("light", which === "all" ? { width: 1440, height: 900 } : { width: 1200, height: 700 }, "");
if (which === "all") {
  await walk("dark", { width: 1440, height: 900 }, "-dark");
  await walk("light", { width: 360, height: 720 }, "-phone");
}
