import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

/** index.html is served at many addresses, so it names its files by absolute paths. Other files use relative paths. */
const absolute: Plugin = {
  name: "absolute-addresses",
  enforce: "post",
  transformIndexHtml: (html) => html.replaceAll('="./', '="/console/').replaceAll(" crossorigin", ""),
};

export default defineConfig({
  base: "./",
  plugins: [absolute],
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/operations/serving/console/assets",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: false,
    target: "es2023",
    reportCompressedSize: false,
  },
  worker: { format: "es" },
  test: { environment: "happy-dom", include: ["tests/**/*.test.{ts,tsx}"] },
});
