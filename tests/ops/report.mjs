// Reads the report of a run in a browser: report.mjs FILE RANK WORDS…
//
// FILE is what `stepmem summary --html` wrote; RANK leaks, and the document has WORDS. Prints what does not hold and exits with 1.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath, pathToFileURL } from "node:url";

import { Reader, runOnPages } from "./browser.mjs";

const DEADLINE_MS = 30_000;
const [file, rank, ...expected] = process.argv.slice(2);
const axe = readFileSync(createRequire(fileURLToPath(new URL("../../target/tools/npm/x.js", import.meta.url))).resolve("axe-core/axe.min.js"), "utf8");

class ReportReader extends Reader {
  /** Opens the file, and notes all that it asks for. */
  async open(width = 1280) {
    this.asked = [];
    this.page.on("request", (request) => this.asked.push(request.url()));
    await this.page.addInitScript(() => {
      window.violations = [];
      document.addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI }) => window.violations.push(`${violatedDirective} ${blockedURI}`));
      window.pwned = false;
    });
    await this.page.setViewportSize({ width, height: 900 });
    await this.page.goto(pathToFileURL(file).href);
    await this.page.locator("#story-chart canvas").waitFor();
    await this.page.locator("#run-lines canvas:visible, #run-map canvas:visible").first().waitFor();
  }
}

const checks = {
  async "it shows the run without a request, and nothing of it is run as markup"(reader) {
    await reader.open();
    assert.deepEqual(reader.asked.filter((url) => !url.startsWith("data:")), [pathToFileURL(file).href]);
    assert.deepEqual(await reader.page.evaluate(() => [window.violations, window.pwned, document.querySelectorAll("img, iframe, object").length]), [[], false, 0]);
    const shown = await reader.page.innerText("body");
    for (const words of expected) assert.ok(shown.includes(words), `no ${words} in ${shown}`);
    assert.equal(await reader.page.locator("#story-head").innerText(), `Rank ${rank}`);
    assert.match(await reader.page.locator("#live").innerText(), /^as of /);
    // It is read later: nothing is so many seconds ago.
    assert.ok(!/\bago\b/.test(shown), shown.match(/.*\bago\b.*/)?.[0]);
    const isRed = await reader.page.locator("#verdict.level-3").count();
    assert.equal(isRed, shown.includes("critical") ? 1 : 0, await reader.page.locator("#verdict").innerText());
    for (const of of ["nav", "#exporter", "#story-commands", ".more:has-text('Acknowledge')"]) assert.equal(await reader.page.locator(of).filter({ visible: true }).count(), 0, of);
    const links = await reader.page.locator("a:visible").evaluateAll((all) => all.map((a) => a.getAttribute("href")));
    assert.deepEqual(links.filter((href) => !href.startsWith("#")), []);
  },

  async "another rank has its story, too, and a link to it keeps its meaning"(reader) {
    await reader.open();
    await reader.page.locator("#story-next").click();
    await reader.page.locator("#story-head", { hasText: new RegExp(`^Rank (?!${rank}$)\\d+$`) }).waitFor();
    const head = await reader.page.locator("#story-head").innerText();
    await reader.page.reload();
    await reader.page.locator("#story-head", { hasText: head }).waitFor();
    await reader.page.locator("#story-chart canvas").waitFor();
    await reader.page.locator("#story-facts", { hasText: /Why/ }).waitFor();
  },

  async "it fits a window and a phone, has no violation of accessibility, and is readable without scripts"(reader) {
    for (const [colorScheme, width] of [["light", 1280], ["dark", 390]]) {
      await reader.page.emulateMedia({ colorScheme });
      await reader.open(width);
      assert.equal(await reader.page.evaluate(() => document.documentElement.scrollWidth), width);
      if (process.env.DRAW) await reader.page.screenshot({ path: `${process.env.DRAW}/report-${width}-${colorScheme}.png`, fullPage: true });
      // The policy stops what the test adds, but not what the browser's tools run.
      const { violations } = await reader.page.evaluate(`${axe}; window.axe.run(document, { resultTypes: ["violations"] })`);
      assert.deepEqual(violations.flatMap(({ id, nodes }) => nodes.map(({ target }) => `${id} at ${target}`)), []);
    }
    const context = await reader.page.context().browser().newContext({ javaScriptEnabled: false });
    const page = await context.newPage();
    await page.goto(pathToFileURL(file).href);
    assert.match(await page.locator("#card pre").innerText(), /RANK/);
    await context.close();
  },
};

await runOnPages(checks, (page) => new ReportReader(page, DEADLINE_MS));
