// Reads the page in a browser: page.mjs DEMO_URL NVML_URL GUARDED_URL
//
// DEMO_URL is a demo whose leak is fixed. NVML_URL is an exporter with an unmanaged process 4711 that fills GPU-a, a lost device
// GPU-b, and rank 0 of run "young" on GPU-c, which has pushed one step. GUARDED_URL is an exporter that asks
// for a token. Prints what does not hold and exits with 1.
import assert from "node:assert/strict";

import { Reader, runOnPages } from "./browser.mjs";

const DEADLINE_MS = 300_000;
const [demoUrl, nvmlUrl, guardedUrl] = process.argv.slice(2);

/** The past of a rank, or of a run, that nothing is known of. */
const COLUMNS = ["time", "step", "allocated_bytes", "peak_allocated_bytes", "reserved_bytes", "host_allocated_bytes", "gaps", "markers"];
const NO_PAST = { ...Object.fromEntries(COLUMNS.map((name) => [name, []])), markers_dropped: 0, ranks: [], windows: [] };

/** What every check gets: a page that fails with what its console says. */
class PageReader extends Reader {
  /** Opens a page; with `status`, it gets that instead of the exporter's. */
  async open(url, status) {
    if (status) {
      await this.page.route("**/api/v1/status", (route) => route.fulfill({ json: status }));
      await this.page.route("**/api/v1/runs/**", (route) => route.fulfill({ json: NO_PAST }));
    }
    await this.page.goto(url);
    await this.page.waitForSelector("#verdict:visible");
  }

  /** The text of the first visible match, once it holds `part`. */
  async has(selector, part) {
    const found = this.page.locator(selector).filter({ hasText: part }).filter({ visible: true }).first();
    await found.waitFor().catch(async () => {
      const shown = await this.page.locator(selector).allInnerTexts();
      throw new Error(`no ${JSON.stringify(part)} in ${selector}: ${JSON.stringify(shown)}`);
    });
    return found;
  }

  async texts(selector) {
    return (await this.page.locator(selector).allInnerTexts()).map((text) => text.replace(/\s+/g, " ").trim());
  }

  async verdict() {
    return (await this.page.locator("#verdict-text").innerText()).replaceAll("\u00a0", " ");
  }
}

/** The status, with its ranks as if they had pushed just now. */
async function statusOf(url) {
  const status = await (await fetch(new URL("api/v1/status", url))).json();
  return { ...status, ranks: status.ranks.map((rank) => ({ ...rank, state: "pushing" })) };
}

/** A finding that no page knows by name. */
function finding(fields) {
  const about = { kind: "BRAND_NEW", status: "BRAND NEW", sentence: "it is new", advice: "Look at it." };
  return { ...about, severity: "warning", since: 1, evidence: {}, ...fields };
}

/** The demo's status with a rank whose line is known, and that has several findings. */
async function crowded() {
  const status = await statusOf(demoUrl);
  const site = { file: "train.py", line: 151, function: "training_step" };
  const stack = [site, { file: "lightning/pytorch/loops/training_epoch_loop.py", line: 120, function: "advance" }];
  const sentence = "live memory grows by 4.92 MiB/step; held by `Trainer.history` (list) of train.py:42 in __init__; out of memory in about 1 h 45 min";
  const evidence = { signal: "allocated", site: { ...site, stack } };
  const of = { run: "demo", rank: 3, sentence };
  const findings = [finding({ ...of, evidence, severity: "critical" }), finding({ ...of, kind: "HIGH_PRESSURE", status: "HIGH PRESSURE" })];
  const ranks = status.ranks.map((rank) => ({ ...rank, oom_eta_seconds: 6300, end: rank.rank === 3 ? { outcome: "completed" } : null }));
  return { ...status, ranks, findings: [...findings, ...status.findings] };
}

const checks = {
  async "a rank's finding is in the verdict, the list, the run's row and its own row alone"(reader) {
    await reader.open(demoUrl);
    await reader.has("#verdict-text", "IMBALANCE on rank 5 of run demo");
    await reader.has("#findings-list li", "rank 5 of run demo");
    await reader.has("#runs-rows tr", "IMBALANCE");
    const marked = (await reader.texts("#ranks-rows tr")).filter((row) => row.includes("IMBALANCE"));
    assert.equal(marked.length, 1, marked);
    assert.match(marked[0], /^5 /);
    assert.match(await reader.page.title(), /^\w+: IMBALANCE · stepmem$/);
    assert.match(await reader.page.locator("#said").innerText(), /^\w+: IMBALANCE on rank 5 of run demo$/);
    // The first reading of a device may come before the first push from it.
    await reader.page.locator("#processes").waitFor({ state: "hidden" });
  },

  async "the filter keeps the ranks that have all its words"(reader) {
    await reader.open(demoUrl);
    await reader.has("#ranks-rows tr", "IMBALANCE");
    await reader.page.fill("#filter", "5 imbalance");
    await reader.has("#ranks-count", "1 of 8");
    assert.equal((await reader.texts("#ranks-rows tr")).length, 1);
  },

  async "an unmanaged process has its row, its finding and its subject"(reader) {
    await reader.open(nvmlUrl);
    await reader.has("#findings-list li", "process 4711 on GPU-a (device 0)");
    const row = await reader.has("#processes-rows tr", "HIGH PRESSURE");
    assert.match(await row.innerText(), /^4711\s/);
    assert.match(await row.innerText(), /78\.0 GiB/);
    assert.match(await row.innerText(), /98%/);
    assert.match(await row.getAttribute("class"), /is-found level-[23]/);
    assert.equal((await reader.texts("#ranks-rows tr")).length, 1, "a process is not a rank");
  },

  async "a process has its name next to its id where that is visible"(reader) {
    const status = await statusOf(nvmlUrl);
    const named = (process) => ({ ...process, name: "python" });
    const devices = status.devices.map((device) => ({ ...device, processes: device.processes.map(named) }));
    await reader.open(nvmlUrl, { ...status, devices });
    await reader.has("#processes-rows tr", "4711 (python)");
    await reader.has("#devices-rows tr", "pid 4711 (python)");
  },

  async "a PID namespace that hides processes, and devices that are not opened, are explained with what to set"(reader) {
    const status = await statusOf(nvmlUrl);
    const hidden = { attribution: "own_pid_namespace", processes: [], other_processes_bytes: null };
    await reader.open(nvmlUrl, { ...status, devices: status.devices.map((device) => ({ ...device, ...hidden })) });
    await reader.has("#devices-rows tr", "set shareProcessNamespace: true in the pod to see and judge them");
    const exporter = { ...status.exporter, devices_hint: "no rank pushes from a device; set --nvml.devices" };
    await reader.open(nvmlUrl, { ...status, devices: [], findings: [], exporter });
    await reader.has("#devices-note", "No device readings: no rank pushes from a device; set --nvml.devices.");
  },

  async "two programs under one name are named below the runs"(reader) {
    const status = await statusOf(nvmlUrl);
    await reader.open(nvmlUrl, status);
    assert.ok(!(await reader.page.locator("#runs-note").isVisible()));
    const [run] = status.runs;
    const runs = [{ ...run, challengers: 2 }, { ...run, run: `${run.run}~2`, asked_for: run.run }];
    await reader.open(nvmlUrl, { ...status, runs });
    await reader.has("#runs-note", `Two programs push under the name ${run.run}; refused lately: 2.`);
    await reader.has("#runs-note", `${run.run}~2 requested the name ${run.run}, under which another program pushes.`);
  },

  async "a lost device is on top, in its row, and not called a rank"(reader) {
    await reader.open(nvmlUrl);
    await reader.has("#verdict-text", "GPU LOST on GPU-b: the driver answers gpu_is_lost");
    assert.match((await reader.texts("#findings-list li"))[0], /GPU LOST GPU-b /);
    const [first] = await reader.texts("#devices-rows tr");
    assert.match(first, /GPU LOST.* GPU-b/);
  },

  async "a rank that is not judged yet says from which step on and has no tick"(reader) {
    await reader.open(nvmlUrl);
    const row = await reader.has("#ranks-rows tr", "growth judged from step 47");
    assert.equal(await row.locator("th .mark").getAttribute("class"), "mark level-pending");
  },

  async "a peak that is not known is a dash, not live memory"(reader) {
    const status = await statusOf(nvmlUrl);
    const ranks = status.ranks.map((rank) => ({ ...rank, allocated_bytes: 3 * 2 ** 30, recent_peak_allocated_bytes: null, pressures: {} }));
    await reader.open(nvmlUrl, { ...status, ranks });
    const cells = await reader.page.locator("#ranks-rows tr").first().locator("th, td").allInnerTexts();
    const heads = await reader.page.locator("#ranks thead th").allInnerTexts();
    const shown = (head) => cells[heads.findIndex((text) => text.trim().toLowerCase() === head)].trim();
    assert.deepEqual([shown("allocated"), shown("peak"), shown("pressure")], ["3.00 GiB", "\u2013", "\u2013"]);
  },

  async "nothing is called right while a rank is not judged"(reader) {
    const status = await statusOf(nvmlUrl);
    const [young] = status.ranks;
    const ranks = [{ ...young, rank: 1, is_judged: true, judging_from_step: undefined }, young];
    await reader.open(nvmlUrl, { ...status, ranks, findings: [], processes: [] });
    assert.equal(await reader.verdict(), "No finding so far: 2 ranks of 1 run are pushing");
    await reader.has("#verdict-more", "1 of 2 is not judged for growth yet; it will be from step 47.");
    assert.match(await reader.page.locator("#verdict").getAttribute("class"), /level-pending/);
  },

  async "an exporter that does not say whether ranks are judged has judged them"(reader) {
    const status = await statusOf(nvmlUrl);
    const ranks = status.ranks.map(({ is_judged, judging_from_step, ...rank }) => rank);
    await reader.open(nvmlUrl, { ...status, ranks, findings: [], processes: undefined });
    assert.equal(await reader.verdict(), "Nothing is wrong: 1 rank of 1 run is pushing, no finding");
    assert.equal(await reader.page.locator("#ranks-rows th .mark").getAttribute("class"), "mark level-0");
  },

  async "ranks that ended or are silent say so, and are not counted as pushing"(reader) {
    const status = await statusOf(nvmlUrl);
    const [young] = status.ranks;
    const judged = { ...young, is_judged: true, judging_from_step: undefined };
    const end = { outcome: "completed", time: null, step: null, error_type: null, error_message: null, requested_bytes: null };
    const ranks = [
      judged,
      { ...judged, rank: 1, state: "silent", silent_seconds: 125 },
      { ...judged, rank: 2, state: "ended", end },
      { ...judged, rank: 3, state: "ended", end: { ...end, outcome: "oom" } },
    ];
    await reader.open(nvmlUrl, { ...status, ranks, findings: [], processes: [] });
    assert.equal(await reader.verdict(), "Nothing is wrong: 1 rank of 1 run is pushing, 1 rank is silent, 2 ranks ended, no finding");
    for (const [rank, words] of [["1", "silent for 2 min"], ["2", "ended (completed)"], ["3", "ended (oom)"]]) {
      const row = await reader.has("#ranks-rows tr", words);
      assert.equal((await row.locator("th").innerText()).trim(), rank);
    }
  },

  async "a rank that ended too soon is not judged from a later step on"(reader) {
    const status = await statusOf(nvmlUrl);
    const end = { outcome: "completed", time: null, step: null, error_type: null, error_message: null, requested_bytes: null };
    const ranks = status.ranks.map((rank) => ({ ...rank, state: "ended", end, is_judged: false, judging_from_step: undefined }));
    await reader.open(nvmlUrl, { ...status, ranks, findings: [], processes: [] });
    assert.equal(await reader.verdict(), "No finding so far: 1 rank ended");
    await reader.has("#verdict-more", "1 of 1 ended too soon to be judged for growth.");
    await reader.has("#ranks-rows tr", "too few steps");
  },

  async "a finding about a device alone is the verdict"(reader) {
    const status = await statusOf(nvmlUrl);
    const findings = [finding({ uuid: "GPU-z", severity: "info" })];
    const empty = { runs: [], ranks: [], processes: [], devices: [] };
    await reader.open(nvmlUrl, { ...status, ...empty, findings });
    assert.equal(await reader.verdict(), "BRAND NEW on GPU-z: it is new");
    await reader.has("#devices-rows tr", "GPU-z");
    assert.ok(!(await reader.page.innerText("body")).includes("Nothing is wrong"));
  },

  async "a time left that is not known is shown as its least"(reader) {
    const status = await statusOf(nvmlUrl);
    const least = { oom_eta_seconds: null, oom_eta_steps: null, oom_eta_lower_seconds: 7200, oom_eta_lower_steps: 900 };
    const ranks = status.ranks.map((rank) => ({ ...rank, ...least }));
    const { run, rank } = ranks[0];
    const sentence = "live memory grows by 2.00 MiB/step, 1.00 GiB since step 9; likely 9.00 GiB left, out of memory in at least 2 h 0 min (900 steps)";
    const evidence = { signal: "allocated", oom_eta_lower_seconds: 7200, oom_eta_lower_steps: 900 };
    await reader.open(nvmlUrl, { ...status, ranks, findings: [finding({ run, rank, sentence, evidence })] });
    assert.equal(await reader.verdict(), `BRAND NEW on rank ${rank} of run ${run}: live memory grows by 2.00 MiB/step; out of memory in at least 2 h 0 min`);
    await reader.has("#runs-rows tr", "≥ 2 h 0 min");
    await reader.has("#ranks-rows tr", "≥ 2 h 0 min");
  },

  async "a rank on a device with a finding is not shown as healthy"(reader) {
    const status = await statusOf(nvmlUrl);
    const ranks = status.ranks.map((rank) => ({ ...rank, device: "GPU-z", is_judged: true }));
    await reader.open(nvmlUrl, { ...status, ranks, findings: [finding({ uuid: "GPU-z", severity: "critical" })] });
    const row = await reader.has("#ranks-rows tr", "BRAND NEW");
    assert.equal(await row.locator("th .mark").getAttribute("class"), "mark level-3");
  },

  async "a diagnosis that the page does not know colors the figures of its evidence"(reader) {
    const status = await statusOf(nvmlUrl);
    const [{ run, rank }] = status.ranks;
    const evidence = { signal: "allocated", imbalance_ratio: 0.5, basis: "device" };
    await reader.open(nvmlUrl, { ...status, findings: [finding({ run, rank, evidence })] });
    const row = await reader.has("#ranks-rows tr", "BRAND NEW");
    assert.equal(await row.locator(".spark").getAttribute("class"), "spark level-2");
    assert.equal(await row.locator(".gauge").getAttribute("class"), "gauge level-2");
    assert.equal(await row.locator("td").last().getAttribute("class"), "num is-toned level-2");
  },

  async "no table reaches beyond the window, and what has no room is named"(reader) {
    const status = await crowded();
    for (const width of [1280, 390]) {
      await reader.page.setViewportSize({ width, height: 800 });
      await reader.open(demoUrl, status);
      await reader.has("#ranks-rows tr", "BRAND NEW");
      const beyond = await reader.page.locator("table:visible").locator("th, td").filter({ visible: true }).evaluateAll((cells) =>
        cells.filter((cell) => cell.getBoundingClientRect().right > innerWidth).map((cell) => cell.textContent),
      );
      assert.deepEqual(beyond, [], `at ${width} px`);
      assert.equal(await reader.page.evaluate(() => document.documentElement.scrollWidth), width);
      // A time left stands on one line.
      for (const cell of ["#runs-rows td:nth-child(5)", "#ranks-rows td:nth-child(14)"]) {
        const tops = await reader.page.locator(cell).evaluateAll((cells) =>
          cells.map((cell) => {
            const range = document.createRange();
            range.selectNodeContents(cell);
            return new Set([...range.getClientRects()].map(({ top }) => top)).size;
          }),
        );
        assert.ok(tops.length > 0 && tops.every((n) => n <= 1), `${cell} at ${width} px: lines ${tops}`);
      }
      const heads = await reader.page.locator("#ranks thead th").filter({ visible: true }).allInnerTexts();
      for (const head of ["Rank", "Findings", "Allocated", "Slope per step", "OOM in"]) assert.ok(heads.includes(head), `${head} of ${heads}`);
      // One run is named above.
      const missing = (await reader.page.locator("#ranks thead th").allTextContents()).filter((head) => !heads.includes(head) && head !== "Run");
      if (missing.length > 0) assert.match(await reader.page.locator("#ranks .columns").innerText(), new RegExp(`^No space for: ${missing.join(", ")}\\.`));
    }
    await reader.page.locator("#ranks .columns button").click();
    assert.equal(await reader.page.locator("#ranks thead th").filter({ visible: true }).count(), 15);
    await reader.page.locator("#ranks .columns button").click();
    await reader.page.setViewportSize({ width: 2400, height: 800 });
    await reader.page.locator("#ranks .columns").waitFor({ state: "hidden" });
  },

  async "the stack of an allocation takes a line a frame, and code is no backtick"(reader) {
    for (const width of [1280, 390]) {
      await reader.page.setViewportSize({ width, height: 800 });
      await reader.open(demoUrl, await crowded());
      await reader.page.locator("#findings-list summary").first().click();
      const frames = await reader.page.locator("#findings-list ol li").evaluateAll((items) =>
        items.map((item) => [item.clientWidth, item.clientHeight, parseFloat(getComputedStyle(item).lineHeight)]),
      );
      assert.equal(frames.length, 2);
      const nLines = width > 640 ? 1 : 2;
      for (const [wide, high, line] of frames) assert.ok(wide > 240 && high < (nLines + 0.5) * line, `${wide} x ${high} px of lines of ${line} px`);
      assert.equal(await reader.page.locator("#findings-list code").first().innerText(), "Trainer.history");
      assert.ok(!(await reader.page.innerText("main")).includes("`"));
    }
  },

  async "where nothing pushes, the client stands before curl, with the address of this exporter"(reader) {
    const status = await statusOf(nvmlUrl);
    await reader.open(nvmlUrl, { ...status, ranks: [], runs: [], findings: [], processes: [], devices: [] });
    const [client, curl] = await reader.texts("#push-example code");
    const push = curl.match(/(http:\/\/\S+)\/v1\/steps$/)[1];
    assert.equal(client, `STEPMEM_PUSH_URL=${push} python -m stepmem train.py`);
  },

  async "where a token is asked for, the commands show one"(reader) {
    const none = await statusOf(guardedUrl);
    await reader.open(guardedUrl, none);
    const [client, curl] = await reader.texts("#push-example code");
    const [, push] = client.match(/^STEPMEM_PUSH_TOKEN_FILE=FILE STEPMEM_PUSH_URL=(http:\/\/\S+) python -m stepmem train.py$/);
    assert.ok(curl.startsWith('curl -H "Authorization: Bearer $(cat FILE)" -H '), curl);
    const status = await statusOf(demoUrl);
    status.findings = [finding({ run: "demo", rank: 3 })];
    await reader.open(guardedUrl, status);
    await reader.page.locator("summary", { hasText: "Commands to copy" }).click();
    const commands = (await reader.texts(".commands code")).filter((command) => /^stepmem (ack|end|snapshot take)/.test(command));
    assert.equal(commands.length, 3);
    for (const command of commands) assert.ok(command.includes(" --token-file FILE") && command.includes(" --url "), command);
    assert.ok(commands.every((command) => command.includes(command.includes("take") ? guardedUrl.slice(0, -1) : push)), commands.join());
  },

  async "an exporter that stops answering is reported, its last figures kept"(reader) {
    await reader.open(demoUrl);
    await reader.page.route("**/api/v1/status", (route) => route.abort());
    await reader.has("#unanswered", "The exporter has not answered since");
    assert.equal(await reader.page.title(), "no answer · stepmem");
    await reader.has("#ranks-rows tr", "demo");
    // The browser's own word about the request.
    reader.errors = reader.errors.filter((error) => !error.includes("net::ERR_FAILED"));
  },
};

await runOnPages(checks, (page) => new PageReader(page, DEADLINE_MS));
