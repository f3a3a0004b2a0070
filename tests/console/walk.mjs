// Walk through the console as a user does, and print what a browser saw: `node walk.mjs URL`.
// When it prints {"restart": true}, the server is to be started again; a line on stdin says that it was.
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer as createSite } from "node:http";
import { createRequire } from "node:module";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { launch } from "../node/browser.mjs";

const require = createRequire(new URL("../node/", import.meta.url));
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const url = process.argv[2];
const FILE = join(mkdtempSync(join(tmpdir(), "console-")), "notes.txt");
writeFileSync(FILE, "from a file");
const stdin = createInterface({ input: process.stdin });
const report = { errors: [], hosts: [], axe: [], small: {} };
let isRestarting = false;

const browser = await launch();
const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, locale: "en-GB" });
const page = await context.newPage();
page.setDefaultTimeout(Number(process.env.CONSOLE_TIMEOUT ?? 60_000)); // for a busy machine
page.on("pageerror", (error) => report.errors.push(String(error.stack)));
page.on("console", (message) => {
  // Chromium itself logs every status of 400 and above: those that a step provokes are no mistake of the page.
  const isStatus = /the server responded with a status of (401|404|409|422|500)/.test(message.text());
  if (message.type() === "error" && !isStatus && !isRestarting) report.errors.push(message.text());
});
page.on("request", (request) => {
  const { protocol, host, port } = new URL(request.url());
  if (Number(port) === proxy.address()?.port) return;
  if (!["data:", "blob:"].includes(protocol) && !report.hosts.includes(host)) report.hosts.push(host);
});

/** A proxy in front of the server whose connections can be cut, as by a network that fails for a moment. */
const sockets = new Set();
const proxy = createServer((inner) => {
  const outer = connect(Number(new URL(url).port), new URL(url).hostname);
  for (const [one, other] of [
    [inner, outer],
    [outer, inner],
  ]) {
    sockets.add(one);
    one.pipe(other);
    one.on("error", () => other.destroy());
    one.on("close", () => {
      sockets.delete(one);
      other.destroy();
    });
  }
});
await once(proxy.listen(0, "127.0.0.1"), "listening");
const cut = () => {
  for (const socket of sockets) socket.destroy();
};

const text = (selector) => page.locator(selector).first().innerText();
const all = (selector) => page.locator(selector).allInnerTexts();
const field = (pointer) => page.locator(`[id="field:${pointer}"]`);
const go = (path) => page.goto(url + path);
const run = async () => {
  await page.locator(".footbar .btn.p").waitFor();
  await page.keyboard.press("Control+Enter");
};
const outcome = async () => {
  await page.locator('[data-outcome]:not([data-outcome="running"])').waitFor();
  return page.locator("[data-outcome]").getAttribute("data-outcome");
};

/** Wait until the server has begun a call: one that is cancelled before that never reaches it, and is not listed. */
const begun = async (operation) => {
  const headers = { authorization: "Bearer maria-token" };
  for (;;) {
    const { calls } = await (await fetch(`${url}api/calls`, { headers })).json();
    if (calls.some((call) => call.operationId === operation && !call.outcome)) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
};

/** Controls below 24 px, or 44 px on a phone. Words in a sentence and the lines of a tree are not controls with a box. */
function smallTargets() {
  const least = innerWidth <= 640 ? 44 : 24;
  const found = [];
  for (const each of document.querySelectorAll("button:not(.acc, .tree button), input, select, .stat a, .crumb a, .nav")) {
    if (!each.checkVisibility({ visibilityProperty: true })) continue;
    const { width, height } = (each.closest("label, .in") ?? each).getBoundingClientRect();
    if (width > 0 && Math.min(width, height) < least - 0.5) found.push(`${each.outerHTML.slice(0, 90)} ${width}×${height}`);
  }
  return found;
}

/** The serious problems that axe finds on the screen as it is, and the controls that are too small. */
async function axe(screen) {
  const small = await page.evaluate(smallTargets);
  if (small.length > 0) report.small[screen] = small;
  await page.evaluate(AXE);
  // While a menu fades in, its colours are mixed with those behind it.
  await page.evaluate(() =>
    Promise.allSettled(
      document
        .getAnimations()
        .filter((each) => each.effect.getComputedTiming().endTime !== Number.POSITIVE_INFINITY)
        .map((each) => each.finished),
    ),
  );
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  for (const each of violations) {
    if (!["serious", "critical"].includes(each.impact)) continue;
    report.axe.push(`${screen}: ${each.id}: ${each.nodes.map((node) => node.target.join(" ")).slice(0, 3)}`);
  }
}

/** The number of calls in the operation's tab. */
const countCalls = () => {
  const tabs = [...document.querySelectorAll('[role="tab"]')].map((tab) => tab.textContent);
  return Number(tabs.find((tab) => tab.startsWith("Calls"))?.replace(/\D/g, "") ?? 0);
};

/** Run, and wait for the end of this call where others came before. */
async function runAgain() {
  const before = await page.evaluate(countCalls);
  await run();
  while ((await page.evaluate(countCalls)) <= before) await page.waitForTimeout(50);
}

/** Drop a file on an element as a file manager does. Return which events the page prevents: otherwise users' browsers open the file. */
async function drop(selector) {
  await page.evaluate(() => {
    window.prevented = {};
    for (const type of ["dragover", "drop"])
      window.addEventListener(type, (event) => (window.prevented[type] = event.defaultPrevented), { once: true });
  });
  const { x, y, width, height } = await page.locator(selector).first().boundingBox();
  const browserSession = await context.newCDPSession(page);
  const data = { items: [], files: [FILE], dragOperationsMask: 1 };
  for (const type of ["dragEnter", "dragOver", "drop"])
    await browserSession.send("Input.dispatchDragEvent", { type, x: x + width / 2, y: y + height / 2, data });
  await browserSession.detach();
  return page.evaluate(() => window.prevented);
}

/** Run with what is in the form, and return the input as an operation that returns it received it. */
async function sent() {
  await runAgain();
  await page.getByRole("tab", { name: "Raw" }).click();
  await page.locator(".raw", { hasText: "data" }).waitFor();
  return JSON.parse(await text(".raw")).data;
}

async function signIn(token) {
  await page.locator("#token").fill(token);
  await page.keyboard.press("Enter");
}

const steps = {
  async signIn() {
    await go("");
    await signIn("wrong");
    report.refusal = await text("#token-message");
    await axe("sign-in");
    await signIn("maria-token");
    await page.locator(".op").first().waitFor();
    report.operations = await text('.nav[aria-current="page"] .c');
  },

  async search() {
    await page.locator("#main").focus();
    await page.keyboard.press("/");
    await page.keyboard.type("create issue comment");
    await page.locator(".op mark").first().waitFor();
    await page.locator(".op.on", { hasText: "github.issues/create-comment" }).waitFor();
    report.found = await all(".op .id");
    await page.locator(".sig").waitFor();
    report.preview = await all(".sig td:first-child");
    await axe("search");
    await page.keyboard.press("Enter");
    report.opened = await text("h1");
  },

  async form() {
    await go("op/shop.order");
    await page.getByRole("button", { name: "Add item" }).click();
    await field("/lines/0/item").fill("tea");
    await field("/address/street").fill("Main Street 1");
    await field("/address/city").fill("Oslo");
    const payment = page.getByRole("radiogroup", { name: "Form of payment" });
    await field("/payment/number").fill("12345678");
    await page.locator("button.add", { hasText: "reference" }).click();
    await field("/payment/reference").fill("R1");
    await payment.getByRole("radio", { name: "Invoice" }).click();
    await field("/payment/due").fill("2026-12-24");
    report.union = [await field("/payment/reference").inputValue()];
    await payment.getByRole("radio", { name: "Card" }).click();
    report.union.push(await field("/payment/number").inputValue());
    await payment.getByRole("radio", { name: "Invoice" }).click();
    report.union.push(await field("/payment/due").inputValue());
    await page.getByRole("button", { name: "Remove reference" }).click();
    await axe("operation");
    await run();
    report.orderOutcome = await outcome();
    report.order = await all('[role="treeitem"]');
    await page.getByRole("tab", { name: "Meta" }).click();
    report.meta = await all(".dl dt");
    await page.locator(".code h2").click();
    report.code = await text('[data-testid="code"]');
    await page.getByRole("radio", { name: "JSON" }).click();
    await page.locator(".cm-content").waitFor();
    report.editor = await text(".cm-content");
    await page.locator(".cm-content").focus();
    await page.keyboard.press("Control+End");
    await page.keyboard.type("x");
    report.brokenJson = await text(".pane .msg");
    report.brokenMark = await page.locator(".j-wrong").first().getAttribute("title");
    await page.keyboard.press("Backspace");
    await page.locator(".j-wrong").first().waitFor({ state: "detached" });
    const lines = await page.locator(".cm-line").count();
    await page.locator(".cm-foldGutter [title='Fold line']").nth(1).click();
    await page.locator(".cm-foldPlaceholder").waitFor();
    report.folded = (await page.locator(".cm-line").count()) < lines;
    await page.locator(".cm-foldPlaceholder").click();
    await page.keyboard.press("Control+a");
    await page.keyboard.type("[");
    report.typedOver = await text(".cm-content");
    await page.keyboard.press("Control+a");
    await page.keyboard.press("Delete");
    await page.keyboard.insertText('{"lines": [], "address": {"street": 1, "city": "Oslo"}}');
    await page.locator('.j-wrong[title="1 is not a string"]').waitFor();
    report.marked = await text('.j-wrong[title="1 is not a string"]');
    await axe("editor");
    await page.getByRole("radio", { name: "Form" }).click();
  },

  async controls() {
    await go("op/shop.controls");
    await field("/flag").waitFor();
    report.optional = (await all("button.add")).map((name) => name.trim());
    for (const name of report.optional)
      await page.locator("button.add", { hasText: new RegExp(`^\\s*${name}\\s*$`) }).first().click();
    report.controls = await page.evaluate(() => {
      const kinds = {};
      for (const label of document.querySelectorAll(".field > .lab")) {
        const name = label.querySelector(".name").textContent;
        const box = label.parentElement;
        const found = [...box.querySelectorAll("input, textarea, select, output, [role=radiogroup], [data-editor], button.add")];
        const kindOf = (each) =>
          each.getAttribute("role") ??
          (each.matches("[data-editor]") ? "editor" : `${each.localName} ${each.getAttribute("type") ?? ""}`);
        kinds[name] ??= found.slice(0, 2).map((each) => kindOf(each) + (each.list ? "list" : ""));
      }
      return kinds;
    });
    await axe("controls");
  },

  async typedAndDropped() {
    const input = '{"flag":true,"fixed":"always","point":[1,2],"tree":{}}';
    await page.goto(`${url}op/shop.controls#in=${btoa(input)}`);
    await page.locator("button.add", { hasText: "anything" }).click();
    await page.locator("button.add", { hasText: "file" }).click();
    await page.locator('[id="field:/file"]:focus').waitFor(); // an added field gets the focus in the next frame
    await page.locator('[id="field:/anything"][aria-busy="false"]').focus();
    await page.keyboard.press("Control+a");
    await page.keyboard.press("Delete");
    await page.keyboard.type('{"a": 1');
    await page.locator(".msg", { hasText: "JSON has an error" }).waitFor();
    await field("/flag").focus();
    await run();
    await page.locator('[id="field:/anything"]:focus').waitFor();
    report.brokenField = [await page.locator("[data-outcome]").count(), await text(".footbar")];
    if (!(await page.locator('[data-testid="code"]').count())) await page.locator(".code h2").click();
    report.brokenCode = [
      await text('[data-testid="code"]'),
      await page.getByRole("button", { name: "Copy code" }).isDisabled(),
      await page.getByRole("button", { name: "Link" }).isDisabled(),
    ];
    await page.locator('[id="field:/anything"]').focus();
    await page.keyboard.press("Control+End");
    await page.keyboard.type("}");
    await page.locator(".msg", { hasText: "JSON has an error" }).waitFor({ state: "detached" });
    await drop(".drop");
    await page.locator(".drop").getByText("11 B").waitFor();
    report.droppedBeside = await drop("h1");
    report.sent = await sent();
    await page.getByRole("button", { name: "Remove the file of file" }).click();
    await page.locator("button.add", { hasText: "file" }).waitFor();
  },

  /** Ctrl-Enter sends what is in the field that has the focus, also where a field is read when it is left. */
  async typedLast() {
    await page.locator("button.add", { hasText: "words" }).click();
    await field("/words").fill("two words");
    report.sentLast = [(await sent()).words];
    await page.locator('[id="field:/anything"]').focus();
    await page.keyboard.press("Control+a");
    await page.keyboard.press("Delete");
    report.sentLast.push("anything" in (await sent()));
    await page.getByRole("radio", { name: "JSON" }).click();
    await page.locator(".cm-content").focus();
    await page.keyboard.press("Control+End");
    await page.keyboard.type("x");
    await page.getByRole("radio", { name: "Form" }).click();
    await page.locator(".msg", { hasText: "the form shows the last valid input" }).waitFor();
    const before = await page.evaluate(countCalls);
    await run();
    await page.locator("#input-editor:focus").waitFor();
    report.brokenText = [(await text(".cm-content")).slice(-2), (await page.evaluate(countCalls)) - before];
    await page.keyboard.press("Control+End");
    await page.keyboard.press("Backspace");
    await page.locator(".j-wrong").first().waitFor({ state: "detached" });
  },

  async validation() {
    await go("op/shop.order");
    await page.getByRole("button", { name: "Reset" }).click();
    await run();
    await page.locator("input:focus").waitFor();
    report.missing = await all(".msg");
    report.focused = await page.locator("input:focus").getAttribute("id");
    await go("op/shop.stock");
    await field("/rows").fill("20001");
    await page.keyboard.press("Tab");
    await page.locator(".msg").waitFor();
    report.said = await text(".msg");
    await run();
    await page.getByRole("button", { name: "Send anyway" }).click();
    report.refusedOutcome = await outcome();
    report.refused = await text(".errc .msgt");
    report.refusedField = await text(".msg");
    await axe("validation");
  },

  /** Run focuses the first field with a problem, also a segmented control; a link has no secrets. */
  async fields() {
    const input = '{"fixed":"always","point":["a",2],"tree":{},"secret":"hush","name":""}';
    await page.goto(`${url}op/shop.controls#in=${btoa(input).replaceAll("=", "")}`);
    await field("/flag").waitFor();
    await run();
    await page.locator("input:focus").waitFor();
    report.firstProblem = await page.locator("input:focus").getAttribute("id");
    await page.locator("button.add", { hasText: "few" }).click();
    report.segmented = await field("/few").getAttribute("role");
    report.removable = [
      await field("/name").getAttribute("placeholder"),
      await page.getByRole("button", { name: "Remove name", exact: true }).count(),
    ];
    await page.evaluate(() => {
      navigator.clipboard.writeText = async (copied) => {
        window.copied = copied;
      };
    });
    await page.getByRole("button", { name: "Link" }).click();
    await page.waitForFunction(() => window.copied);
    report.link = await page.evaluate(() => atob(window.copied.split("#in=")[1].replaceAll("-", "+").replaceAll("_", "/")));
  },

  /** Long texts, exact numbers after a reload, MCP errors, single values. */
  async values() {
    const long = "0123456789".repeat(300);
    const input = `{"flag":true,"fixed":"always","point":[1,2],"tree":{},"body":"${long}","amount":12345678901234567890}`;
    await page.goto(`${url}op/shop.controls#in=${btoa(input).replaceAll("=", "")}`);
    await field("/flag").waitFor();
    await run();
    await outcome();
    await page.getByRole("button", { name: "show all" }).click();
    report.longText = (await text("dialog pre")).length;
    await axe("long text");
    await page.keyboard.press("Escape");
    await page.locator(".footbar .chip").first().waitFor();
    await page.goto(`${url}op/shop.controls`);
    await page.locator(".footbar .chip").first().click();
    await page.getByRole("button", { name: "Re-run" }).click();
    await page.locator(".footbar .chip").nth(1).waitFor();
    await page.getByRole("tab", { name: "Raw" }).click();
    await page.locator(".raw", { hasText: "data" }).waitFor();
    report.digits = /"amount":(\d+)/.exec(await text(".raw"))?.[1];
    await page.goto(`${url}op/text.blocks#in=${btoa('{"fails":true}').replaceAll("=", "")}`);
    await field("/fails").waitFor();
    await run();
    report.toolOutcome = await outcome();
    await page.locator(".card h3").first().waitFor();
    report.toolBlocks = await all(".card h3");
    await page.waitForFunction(() => document.title.startsWith("✗ text.blocks"));
    await go("op/shop.slow");
    await field("/seconds").fill("0");
    await run();
    await outcome();
    report.plainActions = await page.locator(".rt .right button").evaluateAll((buttons) => buttons.map((each) => each.ariaLabel));
  },

  async upstream() {
    await go("op/github.repos/get");
    await field("/owner").fill("nobody");
    await field("/repo").fill("nothing");
    await run();
    report.upstreamOutcome = await outcome();
    report.upstreamStatus = await text(".errc .chip.e");
    report.upstreamBody = await text('.card [role="tree"]');
    await axe("error");
  },

  async table() {
    await go("op/shop.stock");
    await field("/rows").fill("30");
    await run();
    await page.locator(".tablewrap tbody tr").nth(29).waitFor();
    await page.getByRole("button", { name: "left" }).click();
    await page.locator('th[aria-sort="ascending"]').waitFor();
    report.sorted = await page.locator(".tablewrap tbody td:nth-child(4)").first().innerText();
    await axe("table");
    await go("op/shop.picture");
    await run();
    await page.locator(".blob img").waitFor();
    report.image = await page.locator(".blob img").evaluate((image) => image.naturalWidth);
    await go("op/text.blocks");
    await run();
    await page.getByRole("tab", { name: "Meta" }).click();
    report.blocks = await all(".card h3");
    report.script = await page.locator(".card script").count();
    await page.waitForFunction(() => document.querySelector(".blob audio")?.readyState > 0);
    report.audio = await page.locator(".blob audio").evaluate(async (audio) => {
      const ended = new Promise((resolve) => audio.addEventListener("ended", resolve, { once: true }));
      audio.muted = true;
      await audio.play();
      await ended;
      return audio.duration;
    });
    await axe("blocks");
  },

  async history() {
    await go("op/shop.quote");
    for (const item of ["tea", "honey"]) {
      await field("/item").fill(item);
      await run();
      await page.locator(`[role="treeitem"]:has-text("${item}")`).waitFor();
    }
    await page.locator(".footbar .chip").nth(1).waitFor();
    await page.getByRole("button", { name: "Compare" }).click();
    await page.locator(".diff .changed").first().waitFor();
    report.differences = await all(".diff .line.changed > span:first-child");
    await axe("compare");
    await go("calls");
    await page.getByRole("button", { name: "Clear" }).click();
    await page.locator("tbody tr", { hasText: "shop.quote" }).first().click();
    await page.getByRole("button", { name: "Compare" }).click();
    await page.locator(".pop button", { hasText: "ok" }).first().click();
    await page.locator(".diff .changed").first().waitFor();
    report.recorded = await all(".diff .line.changed > span:first-child");
    await page.setViewportSize({ width: 1200, height: 800 });
    await go("op/shop.quote");
    await field("/item").fill("tea");
    for (let times = 0; times < 3; times++) await runAgain();
    report.chips = await page.locator(".past").evaluate((past) => {
      const box = past.getBoundingClientRect();
      const boxes = [...past.children].map((chip) => chip.getBoundingClientRect());
      const inside = boxes.filter(({ right, bottom }) => right <= box.right && bottom <= box.bottom);
      const outside = boxes.filter(({ top }) => top >= box.bottom);
      return [inside.length, outside.length, boxes.length];
    });
    await page.setViewportSize({ width: 1440, height: 900 });
  },

  async keyboard() {
    const at = () => new URL(page.url()).pathname.replace(new URL(url).pathname, "");
    const visited = {};
    await go("op/shop.quote");
    await field("/item").fill("tea");
    await page.locator("#main").focus();
    for (const [key, path] of Object.entries({ c: "calls", w: "workers", j: "jobs", m: "metrics", o: "" })) {
      // The second key counts within a second: on a busy machine it may come later, and both are pressed again.
      for (let left = 30; left > 0 && page.url() !== url + path; left--) {
        await page.keyboard.press("g");
        await page.keyboard.press(key);
        await page.waitForURL(url + path, { timeout: 2_000 }).catch(() => {});
      }
      visited[key] = at();
      await page.evaluate(() => document.activeElement.blur());
    }
    report.visited = visited;
    await page.keyboard.press("Control+k");
    await page.locator("#search:focus").waitFor();
    await page.keyboard.type("shop.quote");
    await page.locator(".op.on", { hasText: "shop.quote" }).waitFor();
    await page.keyboard.press("Escape");
    await page.waitForFunction(() => document.querySelector("#search").value === "");
    await page.keyboard.type("shop.qu");
    await page.locator(".op.on", { hasText: "shop.quote" }).waitFor();
    await page.keyboard.press("Enter");
    await field("/item").waitFor();
    report.letterInField = await (async () => {
      await field("/item").fill("");
      await field("/item").press("e");
      return field("/item").inputValue();
    })();
    for (const item of ["tea", "honey"]) {
      await field("/item").fill(item);
      await run();
      await page.locator(`[role="treeitem"]:has-text("${item}")`).waitFor();
    }
    await page.evaluate(() => document.activeElement.blur());
    const tabs = [];
    for (const digit of ["2", "3", "4", "1"]) {
      await page.keyboard.press(digit);
      tabs.push(await text('.rt [role="tab"][aria-selected="true"]'));
    }
    report.resultTabs = tabs;
    await page.keyboard.press("[");
    await page.locator('[role="treeitem"]:has-text("tea")').waitFor();
    await page.keyboard.press("]");
    await page.locator('[role="treeitem"]:has-text("honey")').waitFor();
    await page.keyboard.press("e");
    await page.locator(".cm-content").waitFor();
    await page.keyboard.press("e");
    await field("/item").waitFor();
    await page.keyboard.press("?");
    await page.locator("dialog[open]").waitFor();
    await axe("keys");
    await page.getByLabel("Use single-character keys").uncheck();
    await page.keyboard.press("Escape");
    await page.locator("dialog[open]").waitFor({ state: "detached" });
    for (const key of ["/", "e", "?"]) await page.keyboard.press(key);
    report.switchedOff = [await page.locator("#search, .cm-content, dialog[open]").count(), at()];
    await page.getByRole("button", { name: /account menu/ }).click();
    await page.getByRole("button", { name: "Keyboard" }).click();
    await page.getByLabel("Use single-character keys").check();
    await page.keyboard.press("Escape");
    await page.locator("dialog[open]").waitFor({ state: "detached" });
    const input = '{"flag":true,"fixed":"always","point":[1,2],"tree":{"below":{"name":"x"}}}';
    await page.goto(`${url}op/shop.controls#in=${btoa(input)}`);
    await field("/flag").waitFor();
    await run();
    await page.locator('[role="treeitem"]', { hasText: "below" }).waitFor();
    await page.locator('[role="treeitem"]').first().focus();
    for (const name of ["fixed", "point", "0", "1", "tree"]) {
      await page.keyboard.press("ArrowDown");
      await page.locator('[role="treeitem"][aria-selected="true"] .k', { hasText: name }).waitFor();
    }
    report.folding = [];
    for (const [key, expanded] of [
      ["ArrowLeft", "false"],
      ["ArrowRight", "true"],
    ]) {
      await page.keyboard.press(key);
      await page.locator(`[role="treeitem"][aria-expanded="${expanded}"]`, { hasText: "tree" }).first().waitFor();
      report.folding.push(key);
    }
  },

  async stream() {
    await go("op/shop.temperatures");
    await field("/per_second").fill("50");
    await run();
    await page.locator(".ev:not(.hd)").nth(10).waitFor();
    await page.keyboard.press("Space");
    const before = await text(".ev:not(.hd)");
    await page.locator(".chip.a", { hasText: "new" }).waitFor();
    report.frozen = before === (await text(".ev:not(.hd)"));
    await axe("stream");
    await page.keyboard.press("Space");
    await page.getByLabel("Filter events").fill("celsius >= 14");
    await page.locator(".ev:not(.hd)").nth(3).waitFor();
    report.filtered = (await all(".ev:not(.hd)")).map((line) => Number(/celsius: ([\d.]+)/.exec(line)?.[1]));
    await page.getByLabel("Filter events").fill("");
    await page.locator(".ev:not(.hd)").nth(2).click();
    report.event = await all('[aria-label^="Event "] dt');
    await page.getByRole("button", { name: "Stop" }).click();
    await page.locator("b", { hasText: "Stopped" }).waitFor();
    await go("op/shop.breaks");
    await run();
    await page.locator(".ev.e").waitFor();
    report.broken = await text(".ev.e");
  },

  async resume() {
    const direct = url;
    const through = new URL(url);
    through.port = String(proxy.address().port);
    await page.goto(`${through}op/shop.temperatures`);
    await signIn("maria-token");
    await field("/per_second").fill("20");
    await run();
    await page.locator(".ev:not(.hd)").nth(10).waitFor();
    isRestarting = true;
    for (const times of [1, 2]) {
      cut();
      await page.locator(".bar", { hasText: `resumed ${times} time` }).waitFor();
      const before = Number((await text('[data-testid="received"]')).replace(/\D/g, ""));
      await page.waitForFunction(
        (least) => Number(document.querySelector('[data-testid="received"]').textContent.replace(/\D/g, "")) > least,
        before + 10,
      );
    }
    await page.keyboard.press("Space");
    report.resumedGaps = await text(".bar .n:has-text('gap')");
    const rows = await all(".ev:not(.hd)");
    report.resumedNumbers = rows.map((row) => Number(/number: (\d+)/.exec(row)?.[1])).filter((each) => each >= 0);
    await page.getByRole("button", { name: "Stop" }).click();
    await page.evaluate(() => sessionStorage.clear());
    await page.goto(direct);
    isRestarting = false;
  },

  async cancel() {
    await go("op/shop.slow");
    await field("/seconds").fill("50");
    await run();
    await page.getByRole("button", { name: "Cancel" }).waitFor();
    await begun("shop.slow");
    await page.keyboard.press("Control+.");
    report.cancelled = await outcome();
    await go("calls");
    await page.locator('tr:has-text("shop.slow"):has-text("ABORTED")').waitFor();
    await axe("calls");
  },

  async trace() {
    await go("op/shop.restock");
    await run();
    await page.getByRole("link", { name: "Trace" }).click();
    await page.locator(".wfrow", { hasText: "text.headline" }).waitFor();
    report.workers = await all(".key");
    await page.locator(".chip.g", { hasText: "ok" }).waitFor();
    report.spans = await page.locator(".wfrow text.mono").allTextContents();
    await page.locator(".wfrow", { hasText: /weather\.forecast.*EXECUTION_ERROR/ }).click();
    report.queued = await text(".det dd .warn");
    report.unread = await all(".det .dcol > p");
    await axe("trace");
    await page.getByRole("tab", { name: "Log" }).click();
    report.log = await page.locator("tbody tr").count();
  },

  async longTrace() {
    await go("op/shop.prices");
    await run();
    await outcome();
    await page.getByRole("link", { name: "Trace" }).click();
    const timeline = page.locator(".wf");
    await page.locator(".wfrow", { hasText: "shop.quote × 600" }).click();
    report.foldedTrace = await page.locator(".wfrow text.mono").allTextContents();
    await timeline.focus();
    await page.keyboard.press("ArrowRight");
    await page.locator(".wf[aria-label^='Timeline of 601 calls']").waitFor();
    report.drawnRows = await page.locator(".wfrow").count();
    await page.keyboard.press("ArrowLeft");
    await page.locator(".wf[aria-label^='Timeline of 2 calls']").waitFor();
    await page.keyboard.press("Escape");
    await page.locator(".det").waitFor({ state: "detached" });
    await page.getByRole("tab", { name: "Log" }).click();
    await page.locator("tbody tr").first().waitFor();
    report.logRows = await page.locator("tbody tr:not(.space)").count();
    await page.locator(".virtual").evaluate((pane) => pane.scrollTo(0, pane.scrollHeight));
    await page.locator("tbody tr.space:first-child").waitFor({ state: "attached" });
    await axe("long trace");
  },

  async watch() {
    await go("workers");
    await page.locator("tbody tr:has-text('weather')").waitFor();
    report.workerRows = await all("tbody td:first-child");
    await page.locator(".chart canvas").first().waitFor();
    await axe("workers");
    await go("metrics");
    await page.locator(".chart canvas").nth(2).waitFor();
    report.chartRoom = await page.locator(".chart").first().evaluate((chart) => {
      const right = (selector) => chart.querySelector(selector).getBoundingClientRect().right;
      return right("canvas") - right(".u-over");
    });
    await page.getByRole("button", { name: "Charts as a table" }).click();
    await page.locator("tbody tr").first().waitFor();
    report.figures = await all("thead th");
    await axe("metrics");
    await page.locator("tbody tr a").first().click();
    await page.locator(".sub", { hasText: "Calls that started from" }).waitFor();
    await go("audit");
    await page.locator("tbody tr:has-text('maria.k')").first().waitFor();
    await axe("audit");
  },

  async jobs() {
    const submit = (input) =>
      page.evaluate(async (body) => {
        const response = await fetch("/shop/report", {
          method: "POST",
          headers: {
            Authorization: `Bearer ${sessionStorage.getItem("operations.token")}`,
            "Content-Type": "application/json",
            Prefer: "respond-async",
          },
          body: JSON.stringify(body),
        });
        return (await response.json()).id;
      }, input);
    await go("jobs");
    await page.locator(".empty").waitFor();
    report.noJobs = await text(".empty");
    const [quick, broken, long] = [
      await submit({ seconds: 0 }),
      await submit({ seconds: 0, broken: true }),
      await submit({ seconds: 600 }),
    ];
    const row = (id, word) => page.locator(`tr[data-job="${id}"]`, { hasText: word });
    await row(quick, "done").waitFor();
    await row(broken, "failed").waitFor();
    await row(long, "page 1 of 20").waitFor();
    report.failedJob = await row(broken, "failed").innerText();
    report.jobStates = await text(".head .sub");
    await axe("jobs");
    report.nothingChosen = await page.getByRole("button", { name: "Retry" }).isDisabled();
    await page.getByLabel(`Choose ${quick}`).check();
    report.doneJob = [
      await page.getByRole("button", { name: "Retry" }).isDisabled(),
      await page.getByRole("button", { name: "Cancel" }).isDisabled(),
    ];
    await page.getByLabel(`Choose ${broken}`).check();
    await page.getByRole("button", { name: "Retry" }).click();
    await page.locator(`tr[data-job="${broken}"]:has-text("failed") td.num:text-is("2")`).waitFor();
    await page.getByLabel(`Choose ${long}`).check();
    await page.getByRole("button", { name: "Cancel" }).click();
    await row(long, "cancelled").waitFor();
    report.finalStates = await text(".head .sub");
    await page.getByRole("radiogroup", { name: "State" }).getByRole("radio", { name: "cancelled" }).click();
    report.onlyCancelled = await page.locator("tbody tr").count();
    await go(`jobs/${broken}`);
    await page.locator(`tr[data-job="${broken}"].on`).waitFor();
  },

  async markup() {
    const check = async (screen) => {
      const found = await page.evaluate(() => [
        document.title.includes("attacked"),
        document.querySelectorAll("#main script, #main img[src='x'], #main svg[onload], a[href^='javascript:']").length,
      ]);
      if (found[0] || found[1]) report.attacked.push(screen);
    };
    report.attacked = [];
    await go("?q=markup");
    await page.locator(".op", { hasText: "text.markup" }).waitFor();
    await page.locator(".sig").waitFor();
    await check("search");
    await go("op/text.markup");
    await field("/text").waitFor();
    await check("operation");
    for (const tab of ["Schema", "Docs", "Calls"]) {
      await page.getByRole("tab", { name: tab }).click();
      await page.locator('[role="tab"][aria-selected="true"]', { hasText: tab }).waitFor();
      await check(tab);
    }
    await page.getByRole("tab", { name: "Try" }).click();
    await run();
    report.markupOutcome = await outcome();
    report.markupData = await text('[role="tree"]');
    for (const tab of ["Data", "Meta", "Raw", "Declared"]) {
      await page.getByRole("tab", { name: tab }).click();
      await check(tab);
    }
    await go("calls");
    await page.goto(`${url}op/text.markup#in=${btoa('{"fails":true}').replaceAll("=", "")}`);
    await run();
    await page.locator(".errc").waitFor();
    await check("error");
    report.markupError = await text(".errc .msgt");
    await go("calls");
    await page.locator('tr:has-text("text.markup")').first().waitFor();
    await check("calls");
  },

  async declared() {
    await go("op/shop.mismatch");
    await run();
    await outcome();
    await page.locator(".note", { hasText: "differ" }).first().waitFor();
    report.differs = await text(".note");
    await page.getByRole("tab", { name: "Declared" }).click();
    report.declared = await all('[role="tabpanel"] tbody tr');
  },

  async scope() {
    await go("");
    await page.getByRole("button", { name: "Scope", exact: true }).click();
    await page.locator(".menu button", { hasText: "admin" }).click();
    await page.locator('button[aria-label="Remove the filter Scope: admin"]').waitFor();
    report.scoped = await all(".op .id");
    report.scopeAddress = new URL(page.url()).search;
  },

  async dark() {
    await page.emulateMedia({ colorScheme: "dark" });
    await go("op/shop.order");
    await field("/address/city").waitFor();
    await axe("operation, dark");
    await go("");
    await page.locator(".op").first().waitFor();
    await axe("search, dark");
    await page.emulateMedia({ colorScheme: "light" });
  },

  async phone() {
    await page.setViewportSize({ width: 360, height: 720 });
    await go("op/shop.quote");
    await field("/item").fill("tea");
    await page.getByRole("button", { name: "Run" }).click();
    await page.locator('[role="treeitem"]').first().waitFor();
    report.phone = await page.evaluate(() => document.documentElement.scrollWidth);
    await page.getByRole("button", { name: "More actions" }).click();
    await page.locator(".pop button", { hasText: "Input as JSON" }).click();
    await page.getByRole("radio", { name: "Input" }).click();
    await page.locator(".cm-content").waitFor();
    await page.getByRole("button", { name: "More actions" }).click();
    await axe("phone actions");
    await page.locator(".pop button", { hasText: "Input as form" }).click();
    await field("/item").waitFor();
    await axe("phone");
    await page.getByRole("button", { name: "Menu" }).click();
    await page.locator(".side.open .find:focus").waitFor();
    await axe("phone menu");
    await page.keyboard.press("Escape");
    await page.locator(".side.open").waitFor({ state: "detached" });
    await page.locator('.mtop [aria-label="Menu"]:focus').waitFor();
    await go("op/shop.restock");
    await page.getByRole("button", { name: "Run" }).click();
    await page.getByRole("link", { name: "Trace" }).click();
    await page.locator(".wfrow", { hasText: "text.headline" }).click();
    report.phoneWorker = await page.locator(".wfrow", { hasText: "text.headline" }).locator(".wk").allTextContents();
    await page.locator(".det dt", { hasText: "Worker" }).waitFor();
    await axe("phone trace");
    await page.setViewportSize({ width: 1440, height: 900 });
  },

  /** At 400 %, a window of 1,280 × 1,024 points has 320 × 256: nothing is cut off at the side or cannot be reached. */
  async zoom() {
    await page.setViewportSize({ width: 320, height: 256 });
    report.zoomed = {};
    for (const path of ["", "op/shop.order", "op/shop.stock", "calls", "workers", "jobs", "metrics", "audit"]) {
      await go(path);
      await page.locator("#main h1, #main .op").first().waitFor();
      if (path === "op/shop.stock") {
        await page.getByRole("button", { name: "Run", exact: true }).click();
        await outcome();
        await page.locator(".tablewrap tbody tr").nth(5).scrollIntoViewIfNeeded();
      }
      report.zoomed[path] = await page.evaluate(() => {
        const reachable = [...document.querySelectorAll("#main button, #main input, #main a")].filter((each) => {
          if (!each.checkVisibility({ visibilityProperty: true }) || each.closest(".tablewrap")) return false;
          each.scrollIntoView({ block: "center", inline: "nearest" });
          const { left, right, top, bottom } = each.getBoundingClientRect();
          return left < -1 || right > innerWidth + 1 || top < -1 || bottom > innerHeight + 1;
        });
        return [document.documentElement.scrollWidth, reachable.map((each) => each.outerHTML.slice(0, 120))];
      });
    }
    await page.setViewportSize({ width: 1440, height: 900 });
  },

  /** A part of the page that cannot be loaded has an error with Retry; the rest works. */
  async missingPart() {
    isRestarting = true;
    await page.route("**/assets/Audit-*.js", (route) => route.abort());
    await go("");
    await page.getByRole("link", { name: "Audit" }).click();
    await page.locator(".note.e", { hasText: "could not be loaded" }).waitFor();
    await page.unroute("**/assets/Audit-*.js");
    await page.getByRole("button", { name: "Retry" }).click();
    await page.locator("h1", { hasText: "Audit" }).waitFor();
    await page.route("**/assets/editor-*.js", (route) => route.abort());
    await go("op/shop.quote");
    await page.getByRole("radio", { name: "JSON" }).click();
    await page.locator("textarea#input-editor").fill('{"item": "rope"}');
    await page.getByRole("radio", { name: "Form" }).click();
    report.withoutEditor = await field("/item").inputValue();
    await page.unroute("**/assets/editor-*.js");
    isRestarting = false;
  },

  /** A destructive operation is confirmed, each press has a key of its own, and a refused token leaves the form as it is. */
  async confirmed() {
    const keys = [];
    const note = (request) => {
      const key = request.method() === "POST" && request.headers()["idempotency-key"];
      if (key) keys.push(key);
    };
    context.on("request", note);
    await go("op/shop.clear");
    await run();
    await page.getByRole("button", { name: "Not now" }).click();
    report.unconfirmed = [await page.locator("[data-outcome]").count(), keys.length];
    for (let times = 0; times < 2; times++) {
      const before = await page.evaluate(countCalls);
      await run();
      await page.getByRole("button", { name: "Run it" }).click();
      while ((await page.evaluate(countCalls)) <= before) await page.waitForTimeout(50);
    }
    context.off("request", note);
    report.keys = [keys.length, new Set(keys).size];
    await go("op/shop.quote");
    await field("/item").fill("candle");
    await page.route("**/shop/quote", (route) => route.fulfill({ status: 401, body: "{}" }));
    await run();
    await page.locator("#token").waitFor();
    await page.unroute("**/shop/quote");
    await signIn("maria-token");
    await page.locator("#token").waitFor({ state: "detached" });
    report.keptForm = await field("/item").inputValue();
  },

  async restart() {
    const restarted = async () => {
      console.log(JSON.stringify({ start: true }));
      await once(stdin, "line");
      await page.getByRole("button", { name: "Retry now" }).click({ timeout: 2_000 }).catch(() => {});
      await page.locator(".lost").waitFor({ state: "detached" });
    };
    await go("op/shop.slow");
    await field("/seconds").fill("50");
    await run();
    await begun("shop.slow");
    isRestarting = true;
    console.log(JSON.stringify({ stop: true }));
    await outcome();
    report.interrupted = await all(".errc dd");
    await restarted();
    await go("op/shop.quote");
    await field("/item").fill("lamp");
    console.log(JSON.stringify({ stop: true }));
    await page.locator(".lost").waitFor();
    report.lost = await text(".lost");
    report.runDisabled = await page.locator(".footbar .btn.p").isDisabled();
    await restarted();
    isRestarting = false;
    report.kept = await field("/item").inputValue();
    await run();
    report.afterRestart = await outcome();
  },

  /** A page of another origin reads nothing, not even with a token that it got hold of. */
  async otherOrigin() {
    const site = createSite((_request, response) => response.setHeader("content-type", "text/html").end("<p>other</p>"));
    await once(site.listen(0, "127.0.0.1"), "listening");
    const other = await context.newPage();
    await other.goto(`http://127.0.0.1:${site.address().port}/`);
    report.readElsewhere = await other.evaluate(async (base) => {
      const found = [];
      for (const path of ["", "api/session", "api/catalogue", "api/calls", "../shop/quote?item=tea"])
        for (const headers of [{}, { Authorization: "Bearer maria-token" }])
          await fetch(base + path, { headers }).then((response) => found.push([path, response.status]), () => {});
      return found;
    }, url);
    await other.close();
    site.close();
  },

  async guest() {
    await go("op/shop.clear");
    await page.getByRole("button", { name: "Pin", exact: true }).click();
    await page.getByRole("button", { name: "Unpin" }).waitFor();
    await go("op/shop.order");
    await field("/address/city").fill("Lima");
    await go("op/shop.quote");
    await field("/item").fill("gold");
    await run();
    await page.locator('[role="treeitem"]:has-text("gold")').waitFor();
    await go("op/shop.slow");
    await field("/seconds").fill("50");
    await run();
    await page.locator('[data-outcome="running"]').waitFor();
    await page.getByRole("button", { name: /account menu/ }).click();
    await page.getByRole("button", { name: "Sign out" }).click();
    await signIn("guest-token");
    await page.locator(".ava", { hasText: "GU" }).waitFor();
    await go("?q=shop.clear");
    await page.locator(".empty").waitFor();
    report.guestNav = await all(".nav:not(.src)");
    await go("op/shop.clear");
    await page.locator(".empty").waitFor();
    report.guestLink = await text(".empty");
    await go("?source=shop");
    await page.locator(".op").first().waitFor();
    await page.locator(".op", { hasText: "shop.quote" }).click();
    await field("/item").waitFor();
    report.guestForm = await field("/item").inputValue();
    report.guestResult = await page.locator("[data-outcome]").count();
    await go("calls");
    await page.locator("h1", { hasText: "Calls" }).waitFor();
    report.guestCalls = await page.locator("tbody tr").allInnerTexts();
    report.guestPins = await page.evaluate(() => localStorage.getItem("operations.pins"));
    report.guestHistory = await page.evaluate(
      () =>
        new Promise((resolve) => {
          indexedDB.open("operations.console").onsuccess = ({ target }) => {
            const asked = target.result.transaction("calls").objectStore("calls").getAll();
            asked.onsuccess = () => resolve(asked.result.filter((call) => !call.owner.endsWith("guest")).length);
          };
        }),
    );
  },
};

const chosen = process.argv.slice(3);
for (const [name, step] of Object.entries(steps)) {
  if (chosen.length > 0 && !chosen.includes(name)) continue;
  if (process.env.CONSOLE_TRACE) console.error(name, Math.round(performance.now()));
  try {
    await step();
  } catch (error) {
    report.failed = `${name}: ${error.message}`;
    await page.screenshot({ path: process.env.CONSOLE_SCREENSHOT ?? "/tmp/console-failed.png" });
    break;
  }
}
console.log(JSON.stringify({ report }));
await browser.close();
rmSync(dirname(FILE), { recursive: true });
process.exit(0);
