// Take pictures of every screen of the console: `node pictures.mjs URL DIRECTORY [SCREEN ...]`.
import { launch } from "../node/browser.mjs";

const [, , url, directory] = process.argv;
const [width, height, deviceScaleFactor] = (process.env.CONSOLE_PICTURES ?? "1440x900x2").split("x").map(Number);
const browser = await launch();

/** A page for one person, signed in; animations and the caret do not blink. */
async function open(options) {
  const context = await browser.newContext({ locale: "en-GB", deviceScaleFactor, reducedMotion: "reduce", ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  await page.goto(url);
  await page.locator("#token").fill("maria-token");
  await page.keyboard.press("Enter");
  await page.locator(".op").first().waitFor();
  const field = (pointer) => page.locator(`[id="field:${pointer}"]`);
  return {
    page,
    field,
    go: (path) => page.goto(url + path),
    save: (name) => page.screenshot({ path: `${directory}/${name}.png` }),
    run: async () => {
      await page.keyboard.press("Control+Enter");
      await page.locator('[data-outcome]:not([data-outcome="running"])').waitFor();
    },
    ended: () => page.locator('[data-outcome]:not([data-outcome="running"])').waitFor(),
  };
}

const link = (value) => `#in=${Buffer.from(JSON.stringify(value)).toString("base64url")}`;
const ISSUE = {
  owner: "octo-org",
  repo: "storefront",
  title: "Checkout rejects postcodes with a space",
  body: "Steps: add tea to the basket, enter “SW1A 1AA”, press Pay.\nExpected: the order is placed. Got: “invalid postcode”.",
  labels: ["bug", { name: "checkout", color: "d73a4a" }],
  assignees: ["hubot", "maria-k"],
};

async function search({ page, go, save }) {
  await go("?source=github");
  await page.locator(".op").first().waitFor();
  await page.keyboard.type("review comment");
  await page.locator(".op mark").first().waitFor();
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowDown");
  await page.locator(".sig tr").nth(4).waitFor();
  await save("search");
}

async function operation({ page, field, go, run, save }, name) {
  for (const owner of ["octo-org", "nobody", "octo-org"]) {
    await go(`op/github.issues/create${link({ ...ISSUE, owner })}`);
    await field("/owner").waitFor();
    await run();
    await page.locator(".footbar .chip").first().waitFor();
  }
  await page.locator(".note").first().waitFor();
  await page.locator('[role="treeitem"]', { hasText: "labels" }).first().click();
  await page.locator('[role="treeitem"][aria-level="2"]').first().click();
  await page.locator('[role="treeitem"]', { hasText: "name" }).first().click();
  await field("/title").focus();
  await save(name);
}

async function error({ page, go, run, save }) {
  await go(`op/shop.advise${link({ city: "Oslo" })}`);
  await page.locator('[id="field:/city"]').waitFor();
  await run();
  await page.locator('[id="field:/city"]').fill("Nowhere");
  await run();
  await page.locator(".errc").waitFor();
  await page.locator(".card").nth(1).waitFor();
  await page.locator(".code h2").click();
  await page.locator('[data-testid="code"]').waitFor();
  await save("error");
}

async function stream({ page, field, go, save }) {
  await go(`op/weather.watch${link({ city: "Oslo", interval: 0.02 })}`);
  await field("/city").waitFor();
  await page.keyboard.press("Control+Enter");
  await page.locator(".ev.w").first().waitFor();
  await page.locator(".ev:not(.hd)").nth(4).click();
  await page.locator(".ev.w").first().waitFor();
  await save("stream");
  await page.getByRole("button", { name: "Stop" }).click();
}

async function workers({ page, go, save }) {
  await go("workers");
  await page.locator("tbody tr").nth(2).waitFor();
  await page.locator(".chart canvas").nth(1).waitFor();
  await save("workers");
}

async function trace({ page, field, go, run, save }, name) {
  await go("op/shop.restock");
  await page.locator(".footbar .btn.p").waitFor();
  await run();
  await page.getByRole("link", { name: "Trace" }).click();
  await page.locator(".wfrow", { hasText: /weather\.forecast.*EXECUTION_ERROR/ }).click();
  await page.locator(".det").getByText("Ran").waitFor();
  await save(name);
}

async function phone({ page, field, go, save }, name) {
  await go("?source=github");
  await page.locator(".op").first().waitFor();
  await page.locator("#search").tap();
  await page.keyboard.type("issue comment");
  await page.locator(".op mark").first().waitFor();
  await save(`${name}-search`);
  await go(`op/weather.forecast${link({ city: "Oslo", days: 9 })}`);
  await field("/days").waitFor();
  await field("/days").focus();
  await page.keyboard.press("Tab");
  await page.locator(".msg").first().waitFor();
  await save(`${name}-input`);
  await field("/days").fill("3");
  await page.locator(".msg").first().waitFor({ state: "detached" });
  await page.getByRole("button", { name: /^Run/ }).click();
  await page.locator('[data-outcome]:not([data-outcome="running"])').waitFor();
  await page.getByRole("radio", { name: "Table" }).click();
  await page.locator(".tablewrap tbody tr").nth(2).waitFor();
  await save(`${name}-result`);
}

const screens = {
  "operation-light": operation,
  error,
  stream,
  waterfall: trace,
  workers,
  search,
  "operation-dark": operation,
  "waterfall-dark": trace,
  phone,
  "phone-dark": phone,
};
const chosen = process.argv.slice(4);
const users = {};
for (const [name, take] of Object.entries(screens)) {
  if (chosen.length > 0 && !chosen.includes(name)) continue;
  const isPhone = name.startsWith("phone");
  const colorScheme = name.endsWith("dark") ? "dark" : "light";
  const user = `${isPhone} ${colorScheme}`;
  users[user] ??= await open({
    colorScheme,
    viewport: isPhone ? { width: 360, height: 720 } : { width, height },
    isMobile: isPhone,
    hasTouch: isPhone,
  });
  await take(users[user], name).catch(async (error) => {
    await users[user].save("failed");
    throw error;
  });
}
await browser.close();
