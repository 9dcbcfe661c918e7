// Draws the page of a demo once its leak is found: draw_page.mjs BINARY PICTURE [light|dark]
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

import { launch } from "./browser.mjs";

const CREEP_WITHIN_MS = 300_000;
const [binary, picture, colorScheme = "light"] = process.argv.slice(2);

/** Starts a demo on free ports and waits until it listens. */
async function startDemo() {
  const free = ["--web.listen-address", "127.0.0.1:0", "--push.listen-address", "127.0.0.1:0"];
  const demo = spawn(binary, ["demo", ...free, "--log.format", "json", "--log.level", "info"], { stdio: ["ignore", "ignore", "pipe"] });
  for await (const line of createInterface(demo.stderr)) {
    const { fields } = JSON.parse(line);
    if (fields.message === "listening" && fields.what === "web") {
      // The pipe must not fill.
      demo.stderr.resume();
      return { demo, url: `http://${fields.address}/` };
    }
  }
  throw new Error(`${binary} ended without an address`);
}

const { demo, url } = await startDemo();
const browser = await launch();
try {
  const page = await browser.newPage({ viewport: { width: 1400, height: 1212 }, colorScheme });
  await page.goto(url);
  const headline = page.locator("#verdict-text", { hasText: "MEMORY CREEP" });
  await headline.waitFor({ timeout: CREEP_WITHIN_MS });
  await page.locator("#findings-list time").first().filter({ hasText: /for \d\d s/ }).waitFor();
  await page.screenshot({ path: picture });
} finally {
  await browser.close();
  demo.kill();
}
