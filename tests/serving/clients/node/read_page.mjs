// Uses the documentation page as a person does: loads it, searches, opens an operation, calls it and follows a stream.
import { JSDOM, VirtualConsole } from "jsdom";

const url = process.argv[2];
const console_errors = [];
const virtual = new VirtualConsole();
virtual.on("jsdomError", (error) => console_errors.push(String(error)));
const page = await (await fetch(`${url}/docs`)).text();
const dom = new JSDOM(page, { url: `${url}/docs`, runScripts: "outside-only", virtualConsole: virtual });
const { window } = dom;
const asked = [];
window.fetch = (address, options = {}) => {
  asked.push([String(address), options.headers?.Authorization]);
  return fetch(String(address), { ...options, signal: undefined });
};
window.TextDecoderStream = TextDecoderStream;
const found = (id) => window.document.getElementById(id);
const until = async (condition) => {
  for (let turn = 0; turn < 500 && !condition(); turn++) await new Promise((resolve) => setTimeout(resolve, 10));
};
const press = (label) => [...window.document.querySelectorAll("main button")].find((each) => each.textContent === label).click();
const output = () => window.document.querySelector("main pre[role=status]").textContent;

window.eval(await (await fetch(`${url}/~/docs.js`)).text());
await until(() => found("list").children.length);
const listed = found("list").children.length;

found("search").value = "hostile";
found("search").dispatchEvent(new window.Event("input"));
const matches = found("list").children.length;
found("list").querySelector("button").click();
await until(() => window.document.querySelector("main h2"));
const hostile = {
  text: window.document.querySelector("main .text").textContent,
  images: window.document.querySelectorAll("main img, main script").length,
};

window.location.hash = encodeURIComponent("shop.find");
await until(() => window.document.querySelector("main h2").textContent === "shop.find");
const text = window.document.querySelector("main textarea");
const sample = text.value;
text.value = '{"name": "chair", "limit": 1}';
press("Call");
await until(() => output().includes("chair") || output().includes("error"));
const called = output();

window.location.hash = encodeURIComponent("shop.watch");
await until(() => window.document.querySelector("main h2").textContent === "shop.watch");
window.document.querySelector("main textarea").value = '{"item": 5}';
press("Subscribe");
await until(() => output().includes("operations.complete"));
const streamed = output().match(/item \d/g);

found("token").value = "a token";
press("Subscribe");
await until(() => output().includes("401"));

process.stdout.write(JSON.stringify({
  title: window.document.title,
  listed,
  matches,
  hostile,
  sample: JSON.parse(sample),
  called: called.includes("200") && called.includes('"name": "chair"'),
  streamed,
  refused: output().includes("401"),
  token: asked.at(-1)[1],
  elsewhere: asked.filter(([address]) => !address.startsWith(url)).length,
  console_errors,
}));
