// A headless Chromium, driven by the playwright-core that tests/ops/install.sh puts into target/tools/npm.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const npm = fileURLToPath(new URL("../../target/tools/npm/x.js", import.meta.url));
const { chromium } = createRequire(npm)("playwright-core");

export function launch() {
  const args = ["--no-sandbox", "--disable-background-networking", "--disable-gpu"];
  return chromium.launch({ executablePath: "/usr/bin/chromium", args });
}

/** Starts an exporter on free ports (`demo`, `serve`), and waits until it listens. */
export async function startExporter(binary, command) {
  const free = ["--web.listen-address", "127.0.0.1:0", "--push.listen-address", "127.0.0.1:0"];
  const exporter = spawn(binary, [...command, ...free, "--log.format", "json", "--log.level", "info"], { stdio: ["ignore", "ignore", "pipe"] });
  for await (const line of createInterface(exporter.stderr)) {
    const { fields } = JSON.parse(line);
    if (fields.message === "listening" && fields.what === "web") {
      // The pipe must not fill.
      exporter.stderr.resume();
      return { exporter, url: `http://${fields.address}/` };
    }
  }
  throw new Error(`${binary} ended without an address`);
}

/** A page that fails with what its console says. */
export class Reader {
  constructor(page, deadlineMs) {
    this.page = page;
    this.errors = [];
    page.setDefaultTimeout(deadlineMs);
    page.on("pageerror", (error) => this.errors.push(error.message));
    page.on("console", (message) => message.type() === "error" && this.errors.push(message.text()));
  }
}

/** Runs every check whose name has CHECK in it, with a reader of a page of its own in a context of these `options`, and ends the process. */
export async function runOnPages(checks, read, options = {}) {
  const browser = await launch();
  const onPage = (check) => async () => {
    const page = await browser.newPage(options);
    const reader = read(page);
    try {
      await check(reader);
      assert.deepEqual(reader.errors, [], "the console has errors");
    } catch (error) {
      throw new Error(`${error.message} ${JSON.stringify(reader.errors)}`);
    } finally {
      await page.close();
    }
  };
  const named = Object.entries(checks).filter(([name]) => name.includes(process.env.CHECK ?? ""));
  await run(browser, Object.fromEntries(named.map(([name, check]) => [name, onPage(check)])));
}

/** Runs every check, prints those that do not hold, and ends the process: with 1 if there are any. */
export async function run(browser, checks) {
  let nFailed = 0;
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check();
    } catch (error) {
      nFailed += 1;
      console.error(`${name}: ${error.message}`);
    }
  }
  await browser.close();
  process.exit(nFailed === 0 ? 0 : 1);
}
