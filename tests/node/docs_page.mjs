// Use the documentation page of a served registry as a reader does, and print what a browser saw: `node docs_page.mjs URL`.
import { launch, open } from "./browser.mjs";

const browser = await launch();
const { page, seen } = await open(browser, new URL("docs", process.argv[2]).href);
const list = page.locator("#list button");
await list.first().waitFor();
const report = { title: await page.title(), listed: await list.allInnerTexts() };

await page.locator("#search").fill("price");
report.found = await list.allInnerTexts();
await list.first().click();
report.shown = await page.locator("main h2").innerText();
await page.locator("textarea").fill('{"item": "tea", "count": 2}');
const output = page.locator("main pre[role=status]");
await page.getByRole("button", { name: "Call" }).click();
await output.getByText("price").waitFor();
report.called = await output.innerText();

await page.locator("#search").fill("follow");
await list.first().click();
await page.getByRole("button", { name: "Subscribe" }).click();
await output.getByText(/Ended$|Stopped$/).waitFor();
report.followed = await output.innerText();
if (process.argv[3]) await page.screenshot({ path: process.argv[3] });
console.log(JSON.stringify({ ...report, ...seen }));
await browser.close();
