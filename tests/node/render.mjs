// Render pages or pictures as PNG, to look at them: `node render.mjs URL FILE [URL FILE ...]`.
import { launch, open } from "./browser.mjs";

const browser = await launch();
for (let index = 2; index < process.argv.length; index += 2) {
  const { page } = await open(browser, process.argv[index], { viewport: { width: 1280, height: 900 } });
  await page.screenshot({ path: process.argv[index + 1] });
}
await browser.close();
