// Draws the page of a demo into a folder, and records what it was drawn from: draw_page.mjs BINARY PICTURES RECORDINGS
//
// Pictures are of 5, 15, 40 and 100 s after the start and of the leaking rank's end, at 1280 and 390 px, light and dark. Recordings,
// for page_story.mjs, are of 100 s and of the end.
import { writeFileSync } from "node:fs";
import { setTimeout as after } from "node:timers/promises";

import { launch, startExporter } from "./browser.mjs";

const [binary, pictures, recordings] = process.argv.slice(2);
const SECONDS = [5, 15, 40, 100];
const RECORDED = { "100s": "creep", oom: "oom" };
const OOM_WITHIN_MS = 600_000;
const RUN = "api/v1/runs/demo";
/** Of a run's history, every so many times is recorded. */
const THINNED = 4;

const { exporter: demo, url } = await startExporter(binary, ["demo"]);
const began = Date.now();
const browser = await launch();

async function draw(moment) {
  const draws = [1280, 390].flatMap((width) => ["light", "dark"].map((colorScheme) => ({ width, colorScheme })));
  for (const { width, colorScheme } of draws) {
    const page = await browser.newPage({ viewport: { width, height: width > 640 ? 900 : 844 }, colorScheme });
    await page.goto(url);
    await page.locator("#story-chart canvas").waitFor();
    await page.locator("#run-lines canvas").waitFor();
    await page.locator("#story-facts span", { hasText: /^…$/ }).waitFor({ state: "detached" });
    await page.screenshot({ path: `${pictures}/demo-${moment}-${width}-${colorScheme}.png` });
    await page.close();
  }
}

async function record(name) {
  const get = async (path) => (await fetch(new URL(path, url))).json();
  const run = await get(`${RUN}/history`);
  const thinned = (values) => values.filter((_, idx) => idx % THINNED === 0);
  run.time = thinned(run.time);
  run.ranks.forEach((rank) => (rank.allocated_bytes = thinned(rank.allocated_bytes)));
  const answers = { status: await get("api/v1/status"), history: await get(`${RUN}/ranks/3/history`), windows: await get(`${RUN}/ranks/3/windows?format=json`), run };
  writeFileSync(`${recordings}/${name}.json`, `${JSON.stringify(answers)}\n`);
}

async function at(moment) {
  if (RECORDED[moment]) await record(RECORDED[moment]);
  await draw(moment);
}

try {
  for (const seconds of SECONDS) {
    await after(Math.max(began + 1000 * seconds - Date.now(), 0));
    await at(`${seconds}s`);
  }
  const page = await browser.newPage();
  await page.goto(url);
  await page.locator("#verdict-text", { hasText: /^OUT OF MEMORY/ }).waitFor({ timeout: OOM_WITHIN_MS });
  await page.close();
  await at("oom");
} finally {
  await browser.close();
  demo.kill();
}
