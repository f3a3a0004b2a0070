// A headless Chromium that needs no installation and no root: `open(url)` gives a page that records what it does.
import chromium from "@sparticuz/chromium";
import { chromium as playwright } from "playwright-core";

/** Options that are not those of users: one process, and OpenGL in software, on which the page's thread waits for seconds. */
const UNUSUAL = /^--(single-process|in-process-gpu|use-gl|use-angle|enable-unsafe-swiftshader|ignore-gpu-blocklist)/;

/** With this option, a page may read what the browsers of users keep from it: the responses of other origins. */
const UNSAFE = "--disable-web-security";

/** Start a browser; with `isUsual`, with the processes that the browsers of users have. */
export async function launch({ isUsual = false } = {}) {
  const safe = chromium.args.filter((each) => each !== UNSAFE);
  const args = isUsual ? [...safe.filter((each) => !UNUSUAL.test(each)), "--disable-gpu"] : safe;
  return playwright.launch({ args, executablePath: await chromium.executablePath(), headless: true });
}

export async function open(browser, url, options = {}) {
  const page = await browser.newPage(options);
  page.setDefaultTimeout(120_000); // for a busy machine
  const seen = { errors: [], hosts: [] };
  page.on("console", (message) => message.type() === "error" && seen.errors.push(message.text()));
  page.on("pageerror", (error) => seen.errors.push(String(error)));
  page.on("requestfailed", (request) => seen.errors.push(`${request.url()}: ${request.failure()?.errorText}`));
  page.on("request", (request) => {
    const { protocol, host } = new URL(request.url());
    if (!["data:", "blob:"].includes(protocol) && !seen.hosts.includes(host)) seen.hosts.push(host);
  });
  await page.goto(url);
  return { page, seen };
}
