// Reads the page in a browser with recorded answers of a demo: page_story.mjs EXPORTER_URL
//
// The exporter serves the page's files; status, histories and windows are those of tests/data/page, changed for each state. Prints what
// does not hold and exits with 1.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

import { Reader, runOnPages } from "./browser.mjs";

const DEADLINE_MS = 120_000;
const HOUR_S = 3600;
/** Seconds between two of the answers that need no network. */
const ANSWER_EVERY_S = 4;
/** Bytes of all that a browser loads before it asks for figures: heads and compressed bodies. */
const PAGE_BYTES_MAX = 60 * 1024;
const [url] = process.argv.slice(2);
const at = (path) => fileURLToPath(new URL(`../../${path}`, import.meta.url));
const recorded = (name) => JSON.parse(readFileSync(at(`tests/data/page/${name}.json`), "utf8"));
const axe = readFileSync(createRequire(at("target/tools/npm/x.js")).resolve("axe-core/axe.min.js"), "utf8");

/** A recording with another leaking rank, run or status: `change` gets the answers. */
function changed(name, change = () => {}) {
  const answers = recorded(name);
  answers.history.live_blocks ??= answers.history.time.map(() => null);
  const rank = answers.status.ranks.find(({ rank }) => rank === 3);
  const finding = answers.status.findings.find(({ kind }) => kind === "CREEP_CONFIRMED");
  change(answers, rank, finding);
  return answers;
}

const quiet = (answers) => (answers.status.findings = []);
const noSlope = ({ creep }) => creep.forEach((signal) => (signal.trend = null));

/** Every state that the page tells apart, and what it says of the rank then. */
const STATES = {
  "a leak": [changed("creep"), ["MEMORY CREEP", "per step", "in about", "train.py:151 in training_step", "Trainer.history", "21.4 GiB at step 4,539", "no innocent cause fits steps"]],
  "the end of a leak": [changed("oom"), ["OUT OF MEMORY", "ended (oom)", "OutOfMemoryError", "train.py:151"]],
  "a rank that is not judged yet": [
    changed("creep", (answers, rank) => {
      quiet(answers);
      answers.status.ranks = [rank];
      Object.assign(rank, { is_judged: false, judging_from_step: rank.step + 41, oom_eta_seconds: null });
    }),
    ["growth judged from step", "not judged yet: 41 more steps"],
  ],
  "a rank that a test stopped": [
    changed("creep", (answers, rank) => {
      quiet(answers);
      answers.status.ranks = [rank];
      noSlope(rank);
      answers.windows.windows = [{ signal: "allocated", records: 64, first_step: 1, last_step: 64, outcome: "stopped", test: "random walk", reason: "its increments differ" }];
    }),
    ["none found", "no growth over steps 1 to 64: its increments differ (test “random walk”)"],
  ],
  "growth that went level": [
    changed("creep", (answers, rank, finding) => {
      finding.severity = "info";
      Object.assign(finding.evidence, { level_since_step: 900, level_since_time: answers.status.time - 90 });
    }),
    ["MEMORY CREEP, level", "level since step 900, 1 min 30 s ago"],
  ],
  "a holder with a bound": [
    changed("creep", (answers, rank, finding) => {
      finding.evidence.holder.fill = { items: 350, items_max: 512, items_per_step: 1, is_own: true };
    }),
    ["350 of 512", "bounded; full in about 162 steps"],
  ],
  "a silent rank": [
    changed("creep", (answers, rank) => Object.assign(rank, { state: "silent", silent_seconds: 125, oom_eta_seconds: null })),
    ["silent for 2 min 5 s", "its process has not said that it ended"],
  ],
  "an acknowledged finding": [
    changed("creep", (answers, rank, finding) => {
      answers.status.acks = [{ run: "demo", rank: 3, kind: finding.kind, reason: "a known cache", since: answers.status.time - 9, until: answers.status.time + 3600 }];
    }),
    ["CREEP_CONFIRMED: a known cache (for 1 h 0 min more)"],
  ],
  "host memory next to a device's": [
    changed("creep", (answers, rank) => {
      answers.history.host_allocated_bytes = answers.history.time.map((_, idx) => (idx % 15 === 0 ? (4 + idx / 256) * 2 ** 30 : null));
      rank.host = { allocated_bytes: 5 * 2 ** 30, total_bytes: 2 ** 36, shared_bytes: null, split_bytes: null, sentence: "2 workers hold 1.00 GiB" };
    }),
    ["Host memory of its process", "2 workers hold 1.00 GiB"],
  ],
  "live blocks beside the bytes": [
    changed("creep", ({ history }, rank) => {
      history.live_blocks = history.time.map((_, idx) => (idx < 20 ? null : 1700 + idx));
      Object.assign(rank, { kept_blocks: { state: "accumulates" }, kept_blocks_sentence: "each step keeps 62 blocks more, since step 152" });
    }),
    ["Live blocks", "each step keeps 62 blocks more, since step 152"],
  ],
  "a process whose device memory is unknown": [
    changed("creep", (answers, rank) => (rank.process_used_state = "memory_hidden")),
    ["Process memory", "unknown: NVML lists it without its memory"],
  ],
  "a reason that a newer exporter gives": [changed("creep", (answers, rank) => (rank.process_used_state = "not_today")), ["unknown: not_today"]],
  "two programs under one name": [changed("creep", (answers) => (answers.status.runs[0].challengers = 2)), ["Two programs push under the name demo"]],
  "a gap and a restart": [
    changed("creep", (answers) => {
      const { time, step, gaps, markers } = answers.history;
      for (let idx = 100; idx < time.length; idx += 1) time[idx] += 600;
      gaps.push(100);
      markers.push({ time: time[100], step: step[100], kind: "restart" });
      answers.status.time += 600;
      answers.status.ranks.forEach((rank) => (rank.last_push_time += 600));
    }),
    ["MEMORY CREEP"],
  ],
};

/** The finding of a leak of host memory, which has no line, but a holder. */
const hostLeak = changed("creep", ({ status }, rank, finding) => {
  Object.assign(finding, { kind: "HOST_CREEP_CONFIRMED", status: "MEMORY CREEP (host)" });
  Object.assign(finding.evidence, { signal: "host", site: null });
  finding.sentence = "host memory grows by 5.00 MiB/step, 2.00 GiB since step 152; held by `cache` (dict, 5.00 MiB more/step; 90 items, 2.00 GiB at step 400) of data.py:7 in fetch; 14.7 GiB left, out of memory in about 50 min 0 s (3,017 steps)";
  finding.evidence.holder = { name: "`cache`", kind: "dict", at: { file: "data.py", line: 7, function: "fetch" }, bytes: 2 ** 31, bytes_per_step: 5 * 2 ** 20 };
  status.findings = [finding];
});

/** What the status has had only since some release, or has only where it applies. */
const NEWER = new Set(
  `acks containers device_pods processes snapshots access_refused collectors devices_hint looks oom_kills recording_lines recordings_given_up snapshot_timelines web_reloads
   memory_kind attribution other_processes_bytes addressing mig_profile device_memory host host_oom_eta_lower_seconds host_oom_eta_seconds is_by_time is_judged judging_from_step
   launch marks_total oom_eta_lower_seconds oom_eta_lower_steps process_estimated_bytes process_used_bytes process_used_state requested_bytes unread_steps
   unread_steps_total without_steps_seconds recent_peak_allocated_bytes pressures state silent_seconds end site holder fill lines since_step is_straight
   level_since_step level_since_time timeline challengers asked_for ranks_expected world_size`.split(/\s+/),
);

/** The status as an older exporter has it. */
const older = (status) => JSON.parse(JSON.stringify(status), (key, value) => (NEWER.has(key) ? undefined : value));

/** The recording with 1,024 ranks, of which the last leaks. */
function crowd() {
  return changed("creep", ({ status, run, history }, leaking, finding) => {
    const n = 1024;
    const [healthy] = status.ranks;
    const times = run.time.filter((_, idx) => idx % 4 === 0);
    const levels = run.ranks.map(({ allocated_bytes: values }) => values.filter((_, idx) => idx % 4 === 0));
    const last = n - 1;
    status.ranks = Array.from({ length: n }, (_, rank) => ({ ...(rank === last ? leaking : healthy), rank, world_size: n, device: `GPU-${rank}` }));
    status.findings = [{ ...finding, rank: last }];
    status.devices = status.devices.slice(0, 1);
    run.time = times;
    run.ranks = Array.from({ length: n }, (_, rank) => ({ rank, allocated_bytes: levels[rank === last ? 3 : 0] }));
    history.rank = last;
  });
}

/** Has a page keep its charts as `window.plots`. */
function collectPlots() {
  let made;
  window.plots = [];
  const collected = (...given) => {
    const plot = new made(...given);
    window.plots.push(plot);
    return plot;
  };
  Object.defineProperty(window, "uPlot", { configurable: true, get: () => made && function (...given) { return collected(...given); }, set: (value) => (made = value) });
}

class PageReader extends Reader {
  /** Opens the page with these answers, at a hash. */
  async open(answers, hash = "") {
    this.answers = answers;
    await this.page.route("**/api/v1/**", (route) => {
      const path = new URL(route.request().url()).pathname;
      const { status, history, windows, run } = this.answers;
      if (path.endsWith("/status")) return route.fulfill({ json: status });
      if (path.endsWith("/windows")) return route.fulfill({ json: windows });
      return route.fulfill({ json: path.includes("/ranks/") ? history : run });
    });
    await this.page.goto(url + hash);
    await this.page.locator("#story-chart canvas").waitFor();
    await this.page.locator("#run-lines canvas:visible, #run-map canvas:visible").first().waitFor();
  }

  /** Opens the page of an exporter that has this status, and no history. Returns what it did not have once the page has drawn that. */
  async openOlder(status) {
    const missing = [];
    await this.page.route("**/api/v1/**", (route) => {
      const path = new URL(route.request().url()).pathname;
      if (path.endsWith("/status")) return route.fulfill({ json: status });
      missing.push(path);
      return route.fulfill({ status: 404, body: "no such path; / links to all pages" });
    });
    await this.page.goto(url);
    await this.page.locator("#ranks-rows tr").first().waitFor();
    await this.page.waitForResponse((response) => response.status() === 404);
    await this.page.waitForResponse((response) => response.url().endsWith("/status"));
    return missing;
  }

  story() {
    return this.page.locator("#story").innerText();
  }

  async violations() {
    await this.page.evaluate(axe);
    const { violations } = await this.page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
    return violations.flatMap(({ id, nodes }) => nodes.map(({ target, failureSummary: why }) => `${id} at ${target}: ${why.replace(/\s+/g, " ")}`));
  }
}

const checks = {
  async "each state says what it is, and nothing reaches beyond the window"(reader) {
    for (const width of [1280, 390]) {
      await reader.page.setViewportSize({ width, height: 900 });
      for (const [name, [answers, expected]] of Object.entries(STATES)) {
        await reader.open(answers, "#run=demo&rank=3");
        for (const words of expected) {
          await reader.page.locator("#story", { hasText: words }).waitFor({ timeout: 10_000 }).catch(async () => assert.fail(`${name}: no ${words} in ${await reader.story()}`));
        }
        assert.equal(await reader.page.evaluate(() => document.documentElement.scrollWidth), width, name);
      }
    }
  },

  async "live blocks are drawn where there are some, up to their newest number"(reader) {
    const answers = STATES["live blocks beside the bytes"][0];
    await reader.open(answers, "#run=demo&rank=3");
    await reader.page.locator("#story-blocks canvas").waitFor();
    const newest = (1699 + answers.history.time.length).toLocaleString("en");
    assert.equal(await reader.page.locator("#story-blocks figcaption").innerText(), `Live blocks ${newest}`);
    await reader.open(STATES["a leak"][0], "#run=demo&rank=3");
    await reader.page.locator("#story-blocks").waitFor({ state: "hidden" });
  },

  async "commands to copy stay inside their card, with their buttons"(reader) {
    for (const width of [1280, 390]) {
      await reader.page.setViewportSize({ width, height: 900 });
      await reader.open(STATES["a leak"][0], "#run=demo&rank=3");
      for (const fold of await reader.page.locator("#story details:visible > summary").all()) await fold.click();
      const right = await reader.page.locator("#story-panel").evaluate((card) => card.getBoundingClientRect().right);
      const parts = await reader.page.locator("#story .commands pre, #story .commands .copy").evaluateAll((parts) => parts.map((part) => part.getBoundingClientRect().right));
      assert.ok(parts.length >= 6);
      for (const part of parts) assert.ok(part <= right, `${part} beyond ${right} at ${width} px`);
    }
  },

  async "no state has a violation of accessibility, in the light and in the dark"(reader) {
    for (const [colorScheme, width] of [["light", 1280], ["dark", 1280], ["dark", 390]]) {
      await reader.page.emulateMedia({ colorScheme });
      await reader.page.setViewportSize({ width, height: 900 });
      for (const [name, [answers]] of Object.entries({ ...STATES, "1,024 ranks": [crowd()] })) {
        if (colorScheme === "dark" && !/leak|judged|silent|1,024/.test(name)) continue;
        await reader.open(answers);
        for (const fold of await reader.page.locator("#story details:visible > summary").all()) await fold.click();
        assert.deepEqual(await reader.violations(), [], `${name}, ${colorScheme}, ${width} px`);
      }
    }
  },

  async "the status of an older exporter is drawn, without a history"(reader) {
    for (const name of ["creep", "oom"]) {
      const { status } = recorded(name);
      const missing = await reader.openOlder(older(status));
      assert.ok(missing.length >= 2, missing.join());
      assert.equal(await reader.page.locator("#ranks-rows tr").count(), status.ranks.length);
      for (const section of ["verdict", "story", "findings", "runs", "ranks", "devices", "exporter"]) assert.ok(await reader.page.locator(`#${section}`).isVisible(), section);
      const shown = await reader.page.innerText("body");
      assert.match(shown, name === "creep" ? /MEMORY CREEP on rank 3 of run demo/ : /OUT OF MEMORY on rank 3 of run demo/);
      assert.ok(!/undefined|NaN|\[object|Invalid/.test(shown), shown);
      reader.errors = reader.errors.filter((error) => !error.includes("status of 404"));
    }
  },

  async "the worst rank is shown until another is chosen, and a link keeps its meaning"(reader) {
    await reader.open(changed("creep"));
    assert.equal(await reader.page.locator("#story-head").innerText(), "Rank 3");
    await reader.page.locator("#ranks-rows tr", { hasText: "IMBALANCE" }).getByRole("link").click();
    await reader.page.locator("#story-head", { hasText: "Rank 5" }).waitFor();
    await reader.page.fill("#filter", "imbalance");
    await reader.page.waitForFunction(() => location.hash === "#run=demo&rank=5&filter=imbalance");
    await reader.page.reload();
    await reader.page.locator("#story-head", { hasText: "Rank 5" }).waitFor();
    await reader.page.locator("#ranks-count", { hasText: "1 of 8" }).waitFor();
    await reader.page.getByRole("link", { name: "Follow the worst rank" }).click();
    await reader.page.locator("#story-head", { hasText: "Rank 3" }).waitFor();
    await reader.page.goBack();
    await reader.page.locator("#story-head", { hasText: "Rank 5" }).waitFor();
  },

  async "all that can be done is reached by keyboard, has a name and shows its focus"(reader) {
    await reader.open(changed("creep"));
    const walked = [];
    for (;;) {
      await reader.page.keyboard.press("Tab");
      const focus = await reader.page.evaluate(() => {
        const node = document.activeElement;
        if (!node || node === document.body) return null;
        const name = node.getAttribute("aria-label") || node.getAttribute("aria-labelledby") || node.textContent.trim();
        const { outlineStyle } = getComputedStyle(node);
        return { tag: node.tagName, id: node.id, name, isSeen: node.getClientRects().length > 0 && outlineStyle !== "none" };
      });
      if (!focus || walked.length > 200) break;
      walked.push(focus);
    }
    assert.deepEqual(walked.filter(({ name, isSeen }) => !name || !isSeen), []);
    const ids = walked.map(({ id, tag }) => id || tag);
    for (const id of ["metrics", "story-scale", "story-previous", "story-next", "SUMMARY", "filter"]) assert.ok(ids.includes(id), `${id} of ${ids}`);
    assert.ok(walked.filter(({ name }) => /^Rank \d of run demo/.test(name)).length >= 8, JSON.stringify(walked.map(({ name }) => name)));

    await reader.page.keyboard.press("]");
    await reader.page.locator("#story-head", { hasText: "Rank 4" }).waitFor();
    await reader.page.keyboard.press("[");
    await reader.page.locator("#story-head", { hasText: "Rank 3" }).waitFor();
    await reader.page.locator("#story-chart .plot").focus();
    await reader.page.keyboard.press("ArrowLeft");
    await reader.page.locator("#story-chart time", { hasText: /step [\d,]+|\d:\d\d/ }).waitFor();
    await reader.page.keyboard.press("+");
    await reader.page.keyboard.press("+");
    await reader.page.locator("#story-unzoom").click();
    await reader.page.locator("#story-unzoom").waitFor({ state: "hidden" });
    await reader.page.keyboard.press("/");
    assert.equal(await reader.page.evaluate(() => document.activeElement.id), "filter");
  },

  async "the scale goes from the capacity to live memory alone, and back"(reader) {
    await reader.open(changed("creep"));
    await reader.page.getByRole("button", { name: "Zoom to live memory" }).click();
    assert.match(reader.page.url(), /scale=live/);
    await reader.page.getByRole("button", { name: "Show up to the capacity" }).click();
    assert.match(reader.page.url(), /scale=capacity/);
  },

  async "a rank that pushes rarely has no dot behind its line in the chart of all ranks"(reader) {
    await reader.page.addInitScript(collectPlots);
    const answers = changed("creep", ({ status, run }) => {
      for (const rank of status.ranks) rank.last_push_time = run.time.at(-1) + 1;
      const { allocated_bytes: values } = run.ranks.find(({ rank }) => rank === 5);
      values.fill(null, -10);
    });
    await reader.open(answers);
    const lines = await reader.page.evaluate(() => {
      const plot = window.plots.find((of) => of.root.closest("#run-lines"));
      return plot.data.slice(1).map((values, nth) => ({ label: plot.series[nth + 1].label, ends: values.at(-1) ?? null, dots: plot.series[nth + 1].points.filter(plot, nth + 1, false, null) }));
    });
    assert.equal(lines.filter(({ ends }) => ends === null).length, 1, JSON.stringify(lines));
    assert.ok(lines.every(({ dots }) => dots === null), JSON.stringify(lines));
  },

  async "every line stays inside the chart at any scale, and only a point without a neighbor is a circle"(reader) {
    await reader.page.addInitScript(collectPlots);
    const answers = STATES["a gap and a restart"][0];
    const { allocated_bytes: live } = answers.history;
    live[104] = live[106] = null;
    for (const scale of ["live", "capacity"]) {
      await reader.open(answers, `#run=demo&rank=3&scale=${scale}`);
      const [outside, nKnown, circles, anyAll] = await reader.page.evaluate(() => {
        const plot = window.plots.find((of) => of.root.closest("#story-chart"));
        const { min, max } = plot.scales.y;
        const lines = plot.data.slice(1);
        const known = lines.flat().filter((value) => value !== null && value !== undefined);
        const nths = lines.map((_, nth) => nth + 1);
        return [known.filter((value) => value < min || value > max), known.length, nths.map((nth) => plot.series[nth].points.filter(plot, nth, false, null)?.length ?? 0), nths.some((nth) => plot.series[nth].points.show(plot, nth, 0, 1, null))];
      });
      assert.ok(nKnown > 300, `${nKnown} values`);
      assert.deepEqual([outside, anyAll], [[], false], scale);
      assert.deepEqual(circles.slice(0, 3), [0, 0, 1], scale);
    }
  },

  async "a filter finds a rank as people write it, and says if it finds none"(reader) {
    await reader.open(changed("creep"));
    for (const [words, found] of [["rank 3", ["3"]], ["RANK 3 run demo", ["3"]], ["imbalance", ["5"]], ["rank", ["0", "1", "2", "3", "4", "5", "6", "7"]]]) {
      await reader.page.fill("#filter", words);
      const shown = await reader.page.locator("#ranks-rows tr th a").allInnerTexts();
      assert.deepEqual(shown.map((name) => name.trim()).sort(), found, words);
      assert.equal(await reader.page.locator("#ranks-none").isVisible(), false);
    }
    await reader.page.fill("#filter", "rank 99 <b>");
    assert.equal(await reader.page.locator("#ranks-none").innerText(), "No rank matches “rank 99 <b>”.");
    assert.equal(await reader.page.locator("#ranks table").isVisible(), false);
  },

  async "the headline of a leak of host memory names what holds it, and what matters is bold"(reader) {
    await reader.open(hostLeak);
    const headline = reader.page.locator("#verdict-text");
    const plain = (text) => text.replaceAll("\u00a0", " ");
    assert.equal(plain(await headline.innerText()), "MEMORY CREEP (host) on rank 3 of run demo: host memory grows by 5.00 MiB/step, held by cache of data.py:7 in fetch; out of memory in about 50 min 0 s");
    const bold = await headline.locator("b").allInnerTexts();
    assert.deepEqual(bold.map(plain), ["MEMORY CREEP (host) on rank 3 of run demo", "5.00 MiB/step", "cache of data.py:7 in fetch", "50 min 0 s"]);
    // No line ends within a quantity or a duration.
    assert.deepEqual([bold[1], bold[3]], ["5.00\u00a0MiB/step", "50\u00a0min\u00a00\u00a0s"]);
    const weights = await headline.evaluate((node) => [node, ...node.querySelectorAll("b, code")].map((of) => Number(getComputedStyle(of).fontWeight)));
    assert.ok(weights[0] <= 400 && weights.slice(1).every((weight) => weight >= 600), weights.join());
  },

  async "a laptop has no NVIDIA driver, and nothing failed that did not"(reader) {
    const answers = changed("creep", ({ status }) => {
      status.devices = [];
      status.gpu = { ...status.gpu, is_up: false, last_success_time: null, errors: { gpu_is_lost: 0, library_missing: 4 } };
      delete status.exporter.devices_hint;
      status.exporter.collectors = ["kubelet", "nvml"].map((name) => ({ collector: name, is_success: name !== "nvml", duration_seconds: 0.001 }));
    });
    await reader.open(answers);
    assert.match(await reader.page.locator("#exporter-list").innerText(), /Collectors\s+kubelet succeeded in 1.00 ms\n/);
    assert.equal(await reader.page.locator("#devices-note").innerText(), "No device readings: no NVIDIA driver here. Pushed steps are still judged.");
    assert.ok((await reader.page.locator("#exporter-list").innerText()).includes("no NVIDIA driver here"));
    assert.ok(!(await reader.page.innerText("body")).includes("gpu is lost"));
  },

  async "what stands below does not move when a finding comes"(reader) {
    const before = changed("creep", quiet);
    await reader.page.setViewportSize({ width: 1280, height: 900 });
    await reader.open(before);
    const top = () => reader.page.locator("#story").evaluate((node) => node.getBoundingClientRect().top);
    const at = await top();
    reader.answers = changed("creep");
    await reader.page.locator("#verdict-text", { hasText: "MEMORY CREEP" }).waitFor();
    assert.equal(await top(), at);
  },

  async "a command is copied as a shell takes it"(reader) {
    const answers = changed("creep", ({ status, run }) => {
      const name = "it's 7b";
      for (const list of [status.ranks, status.runs, status.findings]) list.forEach((of) => (of.run = name));
      run.run = name;
    });
    await reader.page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
    await reader.open(answers);
    await reader.page.locator("summary", { hasText: "Commands to copy" }).click();
    await reader.page.getByRole("button", { name: "Copy: Lower MEMORY CREEP" }).click();
    const copied = await reader.page.evaluate(() => navigator.clipboard.readText());
    assert.match(copied, /^stepmem ack --run 'it'\\''s 7b' --rank 3 .*--kind CREEP_CONFIRMED --for 1d --reason 'known'$/);
  },

  async "the page takes at most 60 KiB of the network"(reader) {
    const cdp = await reader.page.context().newCDPSession(reader.page);
    await cdp.send("Network.enable");
    const [paths, loaded] = [new Map(), {}];
    cdp.on("Network.requestWillBeSent", ({ requestId, request }) => paths.set(requestId, new URL(request.url)));
    cdp.on("Network.loadingFinished", ({ requestId, encodedDataLength: bytes }) => {
      const { protocol, pathname } = paths.get(requestId);
      if (protocol !== "data:" && !pathname.startsWith("/api/")) loaded[pathname] = bytes;
    });
    await reader.open(changed("creep"));
    const total = Object.values(loaded).reduce((sum, bytes) => sum + bytes, 0);
    console.log(`the page: ${total} bytes, ${JSON.stringify(loaded)}`);
    assert.deepEqual(Object.keys(loaded).sort(), ["/", "/page/main.js", "/page/style.css", "/page/uplot.js"]);
    assert.ok(total <= PAGE_BYTES_MAX, `${total} bytes`);
  },

  async "nothing moves while figures change"(reader) {
    await served(reader, changed("creep"));
    const moved = await reader.page.evaluate(async () => {
      const frames = async (n) => {
        for (let idx = 0; idx < n; idx += 1) await new Promise(requestAnimationFrame);
      };
      // All sections have their first figures then, and their columns fit.
      await window.update(2);
      await frames(2);
      const moves = [];
      const note = (entries) => moves.push(...entries.map(({ value, sources }) => [value, sources.map(({ node }) => node?.id || node?.className || node?.nodeName)]));
      const observer = new PerformanceObserver((list) => note(list.getEntries()));
      observer.observe({ type: "layout-shift" });
      for (let n = 0; n < 20; n += 1) {
        await window.update(1);
        await frames(2);
      }
      note(observer.takeRecords());
      return moves;
    });
    assert.deepEqual(moved, []);
  },

  async "an exporter that comes back is live again"(reader) {
    await reader.open(changed("creep", ({ status }) => (status.exporter.ends_with_command = true)));
    await reader.page.route("**/api/v1/status", (route) => route.abort());
    await reader.page.locator("#unanswered", { hasText: /has not answered.*It ends with its command: see stepmem summary logs/ }).waitFor();
    await reader.page.unroute("**/api/v1/status");
    await reader.page.locator("#unanswered").waitFor({ state: "hidden" });
    await reader.page.locator("#live.is-live").waitFor();
    reader.errors = reader.errors.filter((error) => !error.includes("net::ERR_FAILED"));
  },

  async "an hour of updates takes no more memory than its first minutes"(reader) {
    await served(reader, changed("creep"));
    const cdp = await reader.page.context().newCDPSession(reader.page);
    const used = async () => {
      await cdp.send("HeapProfiler.collectGarbage");
      const [{ usedSize }, { nodes, jsEventListeners: listeners }] = [await cdp.send("Runtime.getHeapUsage"), await cdp.send("Memory.getDOMCounters")];
      return { usedSize, nodes, listeners };
    };
    await update(reader, HOUR_S / ANSWER_EVERY_S / 10);
    const early = await used();
    await update(reader, HOUR_S / ANSWER_EVERY_S);
    const late = await used();
    assert.ok(late.usedSize < 1.1 * early.usedSize + 300_000, `${early.usedSize} to ${late.usedSize} bytes`);
    assert.ok(late.nodes <= early.nodes + 50 && late.listeners <= early.listeners, JSON.stringify([early, late]));
  },

  async "of 1,024 ranks only those in sight are in the document, and are written"(reader) {
    const few = await worked(reader, changed("creep"));
    const many = await worked(reader, crowd());
    for (const { ranks, nodes, rows, written, ms } of [few, many]) console.log(`${ranks} ranks: ${nodes} nodes, ${rows} rows, ${written} elements written, ${ms.toFixed(1)} ms an update`);
    const box = reader.page.locator("#ranks .box");
    const inSight = await box.evaluate((node) => Math.ceil(node.clientHeight / node.querySelector("tbody:not(.spacer) tr").offsetHeight));
    assert.ok(many.rows <= inSight + 14, `${many.rows} rows of ${inSight}`);
    assert.ok(many.written <= many.rows + 20, `${many.written} written`);
    assert.ok(many.nodes < 3000, `${many.nodes} nodes`);
    await reader.page.locator("#run-map:visible").waitFor();

    await box.evaluate((node) => (node.scrollTop = node.scrollHeight));
    await reader.page.waitForFunction(() => document.querySelector("#ranks-rows tr:last-child th").innerText.trim() === "1022");
    const [nodes, rows] = await reader.page.evaluate(() => [document.querySelectorAll("*").length, document.querySelectorAll("#ranks-rows tr").length]);
    assert.ok(rows <= inSight + 14 && Math.abs(nodes - many.nodes) < 100, `${rows} rows, ${nodes} nodes`);
  },
};

/** What updates of a page with these answers take: elements, rows and writes counted, and milliseconds of the browser's main thread. */
async function worked(reader, answers) {
  const updates = 20;
  await served(reader, answers);
  const cdp = await reader.page.context().newCDPSession(reader.page);
  await cdp.send("Performance.enable");
  const busy = async () => {
    const { metrics } = await cdp.send("Performance.getMetrics");
    const seconds = metrics.filter(({ name }) => ["ScriptDuration", "LayoutDuration", "RecalcStyleDuration"].includes(name));
    return seconds.reduce((sum, { value }) => sum + 1000 * value, 0);
  };
  const counted = await reader.page.evaluate(async (times) => {
    await window.update(2);
    const written = new Set();
    const observer = new MutationObserver((records) => records.forEach(({ target }) => written.add((target.parentElement ?? target).closest?.("tr"))));
    observer.observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true });
    await window.update(times);
    observer.disconnect();
    const count = (selector) => document.querySelectorAll(selector).length;
    // What the test itself writes does not count.
    window.prepare(times);
    return { nodes: count("*"), rows: count("#ranks-rows tr"), written: written.size };
  }, updates);
  const before = await busy();
  await update(reader, updates);
  const ms = ((await busy()) - before) / updates;
  await cdp.detach();
  return { ranks: answers.status.ranks.length.toLocaleString("en"), ...counted, ms };
}

/** Opens the page with answers that it gets without a network, each later than the one before. */
async function served(reader, answers) {
  await reader.page.addInitScript(([given, every]) => {
    const { status, history, windows, run } = given;
    let n = 0;
    const began = performance.now();
    performance.now = () => began + 1000 * every * n;
    const next = () => {
      n += 1;
      const ranks = status.ranks.map((rank) => ({ ...rank, step: rank.step + 50 * n, last_push_time: rank.last_push_time + every * n, allocated_bytes: rank.allocated_bytes + n * 100_000 }));
      return { ...status, time: status.time + every * n, ranks };
    };
    const prepared = [];
    window.prepare = (times) => {
      for (let idx = 0; idx < times; idx += 1) prepared.push(JSON.stringify(next()));
      n -= times;
    };
    const nextText = () => {
      if (prepared.length === 0) return JSON.stringify(next());
      n += 1;
      return prepared.shift();
    };
    const pasts = Object.fromEntries(Object.entries({ windows, history, run }).map(([name, value]) => [name, JSON.stringify(value)]));
    window.fetch = async (path) => {
      const text = path.endsWith("/status") ? nextText() : pasts[path.includes("/windows") ? "windows" : path.includes("/ranks/") ? "history" : "run"];
      return new Response(text, { headers: { "content-type": "application/json" } });
    };
    window.update = async (times) => {
      for (let idx = 0; idx < times; idx += 1) {
        const before = n;
        const channel = new MessageChannel();
        await new Promise((resolve) => {
          // It is not asked for again while an answer is drawn.
          channel.port1.onmessage = () => {
            if (n > before) return resolve();
            document.dispatchEvent(new Event("visibilitychange"));
            channel.port2.postMessage(0);
          };
          channel.port2.postMessage(0);
        });
        channel.port1.close();
        if (idx % 100 === 0) await new Promise((resolve) => setTimeout(resolve));
      }
    };
  }, [answers, ANSWER_EVERY_S]);
  await reader.page.goto(url);
  await reader.page.locator("#story-chart canvas").waitFor();
}

const update = (reader, times) => reader.page.evaluate((n) => window.update(n), times);

const vendored = readFileSync(at("target/tools/npm/node_modules/uplot/dist/uPlot.iife.min.js"), "utf8");
assert.equal(readFileSync(at("src/output/page/vendor/uplot.js"), "utf8"), vendored, "src/output/page/vendor/uplot.js is not what npm has");

await runOnPages(checks, (page) => new PageReader(page, DEADLINE_MS));
