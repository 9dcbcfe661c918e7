// Presses the buttons of an admin in a browser: page_buttons.mjs EXPORTER_URL
//
// The exporter runs with --web.admin and the token below, and has a user. Prints what does not hold and exits with 1.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

import { Reader, runOnPages } from "./browser.mjs";

const DEADLINE_MS = 60_000;
const TOKEN = "the admin tökén";
const GIB = 2 ** 30;
const [url] = process.argv.slice(2);
const username = "scraper";
const password = "horse";
const authorization = `Basic ${Buffer.from(`${username}:${password}`).toString("base64")}`;
const axe = readFileSync(createRequire(fileURLToPath(new URL("../../target/tools/npm/x.js", import.meta.url))).resolve("axe-core/axe.min.js"), "utf8");

const get = async (path) => (await fetch(new URL(path, url), { headers: { authorization } })).text();
const statusOf = async (run) => {
  const status = JSON.parse(await get("api/v1/status"));
  const of = (list) => list.filter((each) => each.run === run);
  return { rank: of(status.ranks)[0], acks: of(status.acks), findings: of(status.findings), snapshots: of(status.snapshots) };
};

/** Pushes a step of a run whose only rank fills its device. */
async function push(run) {
  const record = { run, rank: 0, step: 1, device: `GPU-${run}`, total_bytes: 80 * GIB, allocated_bytes: 70 * GIB, peak_allocated_bytes: 79 * GIB };
  const headers = { authorization, "content-type": "application/json" };
  const answer = await fetch(`${await get("api/v1/push-url")}/v1/steps`, { method: "POST", headers, body: JSON.stringify(record) });
  assert.equal(answer.status, 200, await answer.text());
}

class AdminReader extends Reader {
  /** Opens the page at the only rank of a run. */
  async open(run) {
    await push(run);
    await this.page.goto(`${url}#run=${encodeURIComponent(run)}&rank=0`);
    await this.page.locator("#story-head", { hasText: "Rank 0" }).waitFor();
  }

  button(name) {
    return this.page.getByRole("button", { name, exact: true });
  }

  dialog() {
    return this.page.getByRole("dialog");
  }

  /** Says yes in the open dialog, with a token if one is asked for, and waits for the words of the outcome. */
  async confirm(name, outcome, token) {
    const field = this.dialog().getByLabel("Admin token");
    if (token) await field.fill(token);
    else assert.ok(!(await field.isVisible()), "the token is asked for a second time");
    await this.dialog().getByRole("button", { name, exact: true }).click();
    await this.dialog().getByRole("alert").filter({ hasText: outcome }).waitFor();
  }

  async close() {
    await this.dialog().getByRole("button", { name: "Close" }).click();
    await this.dialog().waitFor({ state: "detached" });
  }

  /** Leaves out the browser's own word about a refusal with this status. */
  expectRefusal(status) {
    this.errors = this.errors.filter((error) => !error.includes(`status of ${status}`));
  }
}

const checks = {
  async "each button does what it says, and the token is entered once"(reader) {
    const run = "it's/7b";
    await reader.open(run);
    await reader.button("Acknowledge…").first().click();
    await reader.dialog().getByLabel("Reason").fill("a known <cache>");
    await reader.dialog().getByLabel("For", { exact: true }).selectOption("an hour");
    await reader.confirm("Acknowledge", "It is acknowledged.", TOKEN);
    await reader.close();
    const { acks, findings } = await statusOf(run);
    assert.deepEqual(acks.map(({ rank, kind, reason, since, until }) => [rank, kind, reason, Math.round(until - since)]), [[0, "HIGH_PRESSURE", "a known <cache>", 3600]]);
    assert.deepEqual(findings.map(({ severity }) => severity), ["info"]);
    await reader.page.locator("#story-facts", { hasText: "HIGH_PRESSURE: a known <cache>" }).waitFor();

    await reader.button("Request a snapshot…").click();
    await reader.confirm("Request a snapshot", "It is requested.");
    await reader.close();
    assert.deepEqual((await statusOf(run)).snapshots.map(({ rank, outcome }) => [rank, outcome]), [[0, "waiting"]]);

    await reader.button("End the run…").click();
    await reader.dialog().getByLabel("How it ended").selectOption("out of memory");
    await reader.confirm("End the run", "It is ended.");
    await reader.close();
    assert.equal((await statusOf(run)).rank.end.outcome, "oom");
    await reader.page.locator("#story-actions").waitFor({ state: "hidden" });
  },

  async "a wrong token is refused in words, asked for again, and the token is nowhere but in the page's memory"(reader) {
    await reader.open("kept");
    await reader.button("Request a snapshot…").click();
    await reader.confirm("Request a snapshot", "the token is not one of this exporter", "wrong");
    await reader.confirm("Request a snapshot", "It is requested.", TOKEN);
    reader.expectRefusal(401);
    const kept = await reader.page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, location.href, history.state, document.documentElement.outerHTML]));
    assert.ok(!kept.includes("admin tök"), kept);
    assert.deepEqual(await reader.page.context().cookies(), []);
    await reader.close();
    await reader.page.reload();
    await reader.button("Request a snapshot…").click();
    await reader.dialog().getByLabel("Admin token").waitFor();
    await reader.page.keyboard.press("Escape");
    await reader.dialog().waitFor({ state: "detached" });
  },

  async "what the exporter refuses is said, and nothing is done"(reader) {
    await reader.open("refused");
    await reader.button("Acknowledge…").first().click();
    await reader.dialog().getByLabel("Reason").fill("€".repeat(256));
    await reader.confirm("Acknowledge", "reason", TOKEN);
    reader.expectRefusal(400);
    await reader.page.keyboard.press("Escape");
    assert.deepEqual((await statusOf("refused")).acks, []);
  },

  async "a dialog has no violation of accessibility, takes keys, and fits a phone"(reader) {
    for (const [colorScheme, width] of [["light", 1280], ["dark", 390]]) {
      await reader.page.emulateMedia({ colorScheme });
      await reader.page.setViewportSize({ width, height: 800 });
      await reader.open("access");
      await reader.page.locator("#findings-list li", { hasText: "run access" }).getByRole("button").focus();
      await reader.page.keyboard.press("Enter");
      await reader.dialog().waitFor();
      await reader.page.evaluate(axe);
      const { violations } = await reader.page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
      assert.deepEqual(violations.flatMap(({ id, nodes }) => nodes.map(({ target }) => `${id} at ${target}`)), []);
      assert.equal(await reader.page.evaluate(() => document.documentElement.scrollWidth), width);
      if (process.env.DRAW) await reader.page.screenshot({ path: `${process.env.DRAW}/dialog-${width}-${colorScheme}.png` });
      await reader.page.keyboard.press("Escape");
      await reader.dialog().waitFor({ state: "detached" });
      assert.equal(await reader.page.evaluate(() => document.activeElement.textContent), "Acknowledge…");
      if (process.env.DRAW) await reader.page.screenshot({ path: `${process.env.DRAW}/buttons-${width}-${colorScheme}.png` });
    }
  },
};

await runOnPages(checks, (page) => new AdminReader(page, DEADLINE_MS), { httpCredentials: { username, password } });
