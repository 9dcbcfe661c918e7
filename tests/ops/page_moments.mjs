// Reads the page in a browser at moments that were recorded: page_moments.mjs EXPORTER_URL FILE
//
// The exporter serves the page's files; FILE has a list of moments, each the answers of an exporter by their path. Prints what the page
// shows of each moment, as JSON: the text of its parts, the facts of the story by their term, and the rows of its tables by their heads.
import { readFileSync } from "node:fs";

import { Reader, launch } from "./browser.mjs";

const DEADLINE_MS = 120_000;
const [url, file] = process.argv.slice(2);

class MomentReader extends Reader {
  /** Shows the page with the answers of a moment; returns once it has drawn all of them. */
  async open(answers) {
    const asked = new Set();
    await this.page.unrouteAll({ behavior: "wait" });
    await this.page.route("**/api/v1/**", (route) => {
      const { pathname, search } = new URL(route.request().url());
      const path = pathname + search;
      asked.add(path);
      return path in answers ? route.fulfill({ json: answers[path] }) : route.fulfill({ status: 404, body: `no ${path}` });
    });
    await this.page.goto(url);
    await this.page.locator("#story-chart canvas").waitFor();
    // Until its windows are known the story says so.
    await this.page.waitForFunction(() => !document.getElementById("story-facts").textContent.includes("\u2026"));
    const missing = [...asked].filter((path) => !(path in answers));
    if (missing.length > 0) throw new Error(`the page asked for ${missing}`);
  }

  shown() {
    return this.page.evaluate(() => {
      const flat = (node) => node.textContent.replace(/\s+/g, " ").trim();
      const text = (id) => flat(document.getElementById(id));
      const table = (id) => {
        const heads = [...document.querySelectorAll(`#${id} thead th`)].map(flat);
        const cells = (row) => Object.fromEntries([...row.children].map((cell, idx) => [heads[idx], flat(cell)]));
        return [...document.querySelectorAll(`#${id}-rows tr`)].map(cells);
      };
      const facts = [...document.querySelectorAll("#story-facts > div")].map((row) => [flat(row.querySelector("dt")), flat(row.querySelector("dd span"))]);
      const charts = [...document.querySelectorAll("#story-chart [aria-label]")].map((node) => node.getAttribute("aria-label"));
      return {
        title: document.title,
        verdict: text("verdict-text"),
        more: text("verdict-more"),
        story: text("story-head"),
        facts: Object.fromEntries(facts),
        chart: charts[0] ?? "",
        findings: [...document.querySelectorAll("#findings-list > li")].map(flat),
        runs: table("runs"),
        ranks: table("ranks"),
      };
    });
  }
}

const browser = await launch();
try {
  const shown = [];
  const reader = new MomentReader(await browser.newPage({ viewport: { width: 2400, height: 1200 } }), DEADLINE_MS);
  for (const answers of JSON.parse(readFileSync(file, "utf8"))) {
    await reader.open(answers);
    shown.push(await reader.shown());
    if (reader.errors.length > 0) throw new Error(`the console has errors: ${reader.errors}`);
  }
  console.log(JSON.stringify(shown));
} finally {
  await browser.close();
}
