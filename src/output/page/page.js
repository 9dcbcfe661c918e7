"use strict";

const POLL_MS = 1000;
const ANSWER_WITHIN_MS = 5000;
const SPARK_POINTS_MAX = 120;
const SPARK_WIDTH = 80;
const SPARK_HEIGHT = 20;
const LEVELS = { info: 1, warning: 2, critical: 3 };
const SIGNAL_KINDS = {
  allocated: ["CREEP_CONFIRMED", "CREEP_EARLY"],
  reserved: ["FRAGMENTATION"],
  outside_allocator: ["OUTSIDE_ALLOCATOR"],
  process: ["CREEP_CONFIRMED", "CREEP_EARLY"],
};
const ATTRIBUTION_WORDS = {
  own_pid_namespace: "in another PID namespace, not seen from here",
  foreign_pid_namespace: "listed by the ids of another PID namespace, not known here",
  memory_hidden: "seen, but the driver hides their memory",
  unsupported: "the driver gives no process list",
};
const DASH = "–";
const NUMBER = new Intl.NumberFormat("en");

const $ = (id) => document.getElementById(id);
const isKnown = (value) => value !== null && value !== undefined;
const known = (value, format) => (isKnown(value) ? format(value) : DASH);
const number = (value) => NUMBER.format(value);
const plural = (n, noun) => `${number(n)} ${noun}${n === 1 ? "" : "s"}`;
const minus = (text) => text.replace("-", "\u2212");
const percent = (ratio) => minus(`${Math.round(100 * ratio) || 0}%`);
const signed = (ratio) => (Math.round(100 * ratio) > 0 ? "+" : "") + percent(ratio);
// By the exporter's own clock, whatever the reader's says.
const since = (unix) => duration(Math.max(last.time - unix, 0));
const ago = (unix) => (last.time - unix < 1 ? "now" : `${since(unix)} ago`);
const milli = (seconds) => `${(1000 * seconds).toFixed(2)} ms`;
const stamp = (unix) => new Date(1000 * unix).toLocaleString();
const keyOf = ({ run, rank }) => `${rank} ${run}`;
const levelOf = (findings) => findings.reduce((worst, f) => Math.max(worst, LEVELS[f.severity]), 0);
const most = (values) => values.filter(isKnown).reduce((a, b) => (a > b ? a : b), null);
const least = (values) => values.filter(isKnown).reduce((a, b) => (a !== null && a < b ? a : b), null);

function bytes(value) {
  if (Math.abs(value) < 0.5) return "0 B";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const size = Math.abs(value);
  return `${minus(value.toFixed(unit === 0 || size >= 100 ? 0 : size >= 10 ? 1 : 2))} ${units[unit]}`;
}

function duration(seconds) {
  const minutes = Math.floor(seconds / 60);
  const hours = Math.floor(minutes / 60);
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (minutes < 60) return `${minutes} min`;
  if (hours < 24) return `${hours} h ${minutes % 60} min`;
  return `${number(Math.floor(hours / 24))} d ${hours % 24} h`;
}

// Everything below changes only what differs: selections and scroll positions outlive an update.

function text(node, value, title) {
  const only = node.firstChild;
  if (!only) node.append(value);
  else if (only.data !== value) only.data = value;
  if (title !== undefined) hint(node, title);
}

function attribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

function hint(node, value) {
  if (node.title !== value) node.title = value;
}

function tone(node, level, extra = "") {
  const name = `${extra}${level === null ? "" : ` level-${level}`}`.trim();
  if (node.className !== name) node.className = name;
}

function show(node, isShown) {
  if (node.hidden === isShown) node.hidden = !isShown;
}

function element(name, className = "", ...children) {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

/** Keeps one child of `parent` for each item, in order. */
class Rows {
  constructor(parent, make, update) {
    Object.assign(this, { parent, make, update, rows: new Map() });
  }

  set(items, key) {
    const gone = new Set(this.rows.keys());
    items.forEach((item) => gone.delete(key(item)));
    for (const name of gone) {
      this.rows.get(name).node.remove();
      this.rows.delete(name);
    }
    let next = this.parent.firstChild;
    for (const item of items) {
      let row = this.rows.get(key(item));
      if (!row) {
        row = this.make();
        this.rows.set(key(item), row);
      }
      if (row.node === next) next = next.nextSibling;
      // One row that left its place is moved later, instead of all the rows behind it now.
      else if (next && row.node === next.nextSibling) next = row.node.nextSibling;
      else this.parent.insertBefore(row.node, next);
      this.update(row, item);
    }
  }
}

/** Rows of which the first `limit` are shown until a button asks for all. */
class Capped {
  constructor(rows, button, limit, noun) {
    Object.assign(this, { rows, button, limit, noun, isWhole: false });
    button.addEventListener("click", () => {
      this.isWhole = !this.isWhole;
      render();
    });
  }

  set(items, key) {
    this.rows.set(this.isWhole ? items : items.slice(0, this.limit), key);
    show(this.button, items.length > this.limit);
    const label = this.isWhole ? `Show the first ${this.limit}` : `Show all ${plural(items.length, this.noun)}`;
    text(this.button, label);
  }
}

function mark() {
  const node = element("span", "mark");
  node.setAttribute("aria-hidden", "true");
  return node;
}

function badges(parent) {
  return new Rows(
    parent,
    () => {
      const label = element("span");
      const severity = element("span", "unseen");
      return { node: element("span", "badge", mark(), severity, label), label, severity };
    },
    (row, finding) => {
      tone(row.node, LEVELS[finding.severity], "badge");
      text(row.severity, `${finding.severity}: `);
      text(row.label, finding.status);
      hint(row.node, `${finding.severity}: ${finding.sentence}`);
    },
  );
}

function gauge(parent, className = "") {
  const bar = element("i");
  const track = element("span", "track", bar);
  const label = element("span");
  track.setAttribute("aria-hidden", "true");
  const node = element("div", "gauge", track, label);
  parent.append(node);
  return (ratio, words, level) => {
    tone(node, level || null, `gauge ${className}`.trim());
    const width = isKnown(ratio) ? `${(100 * Math.min(Math.max(ratio, 0), 1)).toFixed(1)}%` : "0";
    if (bar.style.width !== width) bar.style.width = width;
    text(label, words);
  };
}

/** A `tr` with a cell for each class name; the first is its header. */
function tableRow(...classes) {
  const cells = classes.map((name, idx) => element(idx === 0 ? "th" : "td", name));
  cells[0].scope = "row";
  return { node: element("tr", "", ...cells), cells };
}

// The history of `allocated` by rank. A full one drops every second point and takes half as many from then on, so
// that it reaches back to the opening of the page within SPARK_POINTS_MAX points.
const sparks = new Map();

function remember({ ranks }) {
  const now = performance.now() / 1000;
  const present = new Set();
  for (const rank of ranks) {
    const key = keyOf(rank);
    present.add(key);
    if (!isKnown(rank.allocated_bytes)) continue;
    const spark = sparks.get(key) ?? { points: [], gap: 0 };
    sparks.set(key, spark);
    spark.last = [now, rank.allocated_bytes];
    const newest = spark.points.at(-1);
    if (newest && now - newest[0] < spark.gap) continue;
    spark.points.push(spark.last);
    if (spark.points.length >= SPARK_POINTS_MAX) {
      spark.points = spark.points.filter((_, idx) => idx % 2 === 0);
      const reach = spark.points.at(-1)[0] - spark.points[0][0];
      spark.gap = (0.95 * reach) / (spark.points.length - 1);
    }
  }
  for (const key of sparks.keys()) if (!present.has(key)) sparks.delete(key);
}

function sparkline(parent) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const line = document.createElementNS(space, "polyline");
  svg.append(line);
  svg.setAttribute("viewBox", `0 0 ${SPARK_WIDTH} ${SPARK_HEIGHT}`);
  svg.setAttribute("aria-hidden", "true");
  parent.append(svg);
  return (key, level) => {
    attribute(svg, "class", level ? `spark level-${level}` : "spark");
    const { points, last } = sparks.get(key) ?? { points: [] };
    if (points.length === 0) return line.removeAttribute("points");
    const all = points.at(-1) === last ? points : [...points, last];
    const values = all.map((point) => point[1]);
    const low = Math.min(...values);
    const high = Math.max(...values);
    // A range below one percent of the figure is drawn flat, or noise would look like creep.
    const span = Math.max(high - low, 0.01 * high, 1);
    const floor = (low + high - span) / 2;
    const began = all[0][0];
    const reach = Math.max(last[0] - began, 1);
    const place = ([time, value]) => {
      const x = 1 + ((time - began) / reach) * (SPARK_WIDTH - 2);
      const y = SPARK_HEIGHT - 2 - ((value - floor) / span) * (SPARK_HEIGHT - 4);
      return `${x.toFixed(1)},${y.toFixed(1)}`;
    };
    attribute(line, "points", all.map(place).join(" "));
    hint(parent, `from ${bytes(values[0])} to ${bytes(last[1])} in ${duration(last[0] - began)}`);
  };
}

function eta({ oom_eta_seconds: seconds, oom_eta_steps: steps }) {
  if (isKnown(seconds)) return duration(seconds);
  return known(steps, (value) => plural(Math.round(value), "step"));
}

function arrow(slope) {
  if (slope.trend || slope.slope_lower_bytes_per_step > 0) return "↗";
  return slope.slope_upper_bytes_per_step < 0 ? "↘" : "→";
}

// A process that does not push has no steps.
function slopeText({ slope_bytes_per_step: step, slope_bytes_per_second: second }) {
  return isKnown(step) ? bytes(step) : known(second, (slope) => `${bytes(3600 * slope)}/h`);
}

function slopeWords(slope) {
  const lower = bytes(slope.slope_lower_bytes_per_step);
  const upper = bytes(slope.slope_upper_bytes_per_step);
  const perStep = isKnown(slope.slope_bytes_per_step) ? ` per step (95% interval ${lower} to ${upper})` : "";
  const words = `${slope.signal}: ${slopeText(slope)}${perStep}`;
  if (!slope.trend) return words;
  const { growth_bytes: growth, onset_step: step, onset_time: time, confidence_ratio: confidence } = slope.trend;
  const onset = isKnown(step) ? `step ${number(Math.round(step))}` : stamp(time);
  return `${words}, ${bytes(growth)} since ${onset}, confidence ${percent(confidence)}`;
}

function makeFinding() {
  const [severity, status, where, sentence, advice] = ["span", "b", "span", "p", "p"].map((name) => element(name));
  advice.className = "advice";
  const badge = element("span", "badge", mark(), severity);
  const time = element("time");
  const what = element("div", "", element("p", "", status, where), sentence, advice);
  return { node: element("li", "", badge, what, time), badge, severity, status, where, sentence, advice, time };
}

function updateFinding(row, finding) {
  tone(row.badge, LEVELS[finding.severity], "badge");
  text(row.severity, finding.severity);
  text(row.status, finding.status);
  text(row.where, `rank ${finding.rank} of run ${finding.run}`);
  text(row.sentence, finding.sentence);
  text(row.advice, finding.advice);
  text(row.time, `for ${since(finding.since)}`, stamp(finding.since));
}

function makeRun() {
  const row = tableRow("name-cell", "num", "num", "num", "num", "found");
  return { ...row, badges: badges(row.cells[5]) };
}

function updateRun({ cells, badges: list }, run) {
  const [name, ranks, step, imbalance, oom] = cells;
  const expected = isKnown(run.ranks_expected) ? ` of ${number(run.ranks_expected)}` : "";
  const steps = run.members.map((rank) => rank.step);
  const [first, newest] = [least(steps), most(steps)];
  text(name, run.run, run.run);
  text(ranks, number(run.ranks) + expected);
  text(step, first === newest ? known(newest, number) : `${number(first)} to ${number(newest)}`);
  const whose = isKnown(run.worst_rank) ? ` (rank ${run.worst_rank})` : "";
  text(imbalance, known(run.imbalance_ratio, (ratio) => signed(ratio) + whose));
  const soonest = (name) => least(run.members.map((rank) => rank[name]));
  text(oom, eta({ oom_eta_seconds: soonest("oom_eta_seconds"), oom_eta_steps: soonest("oom_eta_steps") }));
  const kinds = grouped(run.findings.sort(soonerFirst), (finding) => finding.kind);
  const counted = [...kinds.values()].map(([first, ...others]) => {
    const times = others.length > 0 ? ` × ${number(1 + others.length)}` : "";
    return { ...first, status: first.status + times };
  });
  list.set(counted, (finding) => finding.kind);
}

function makeRank() {
  const num = "num";
  const row = tableRow("pin", "name-cell", "found", "mono", num, num, num, "", num, num, num, "", num, num, num);
  const { cells } = row;
  const [dot, label] = [mark(), element("span")];
  cells[0].append(dot, label);
  const slope = ["arrow", ""].map((className) => cells[12].appendChild(element("span", className)));
  return { ...row, dot, label, slope, badges: badges(cells[2]), spark: sparkline(cells[7]), pressure: gauge(cells[11]) };
}

function updateRank(row, rank) {
  const [name, run, , device, step, pushed, allocated, , peak, reserved, capacity, pressure, slope, oom, balance] = row.cells;
  const level = (...kinds) => levelOf(rank.findings.filter((finding) => kinds.includes(finding.kind)));
  const toned = (node, value) => tone(node, value || null, value ? "num is-toned" : "num");
  tone(row.node, rank.level || null, rank.level ? "is-found" : "");
  tone(row.dot, rank.level, "mark");
  text(row.label, String(rank.rank));
  const { attempt, pid, local_rank: local, node_rank: host, world_size: size } = rank;
  const said = Object.entries({ "of ranks": size, "local rank": local, node: host, pid, attempt });
  hint(name, said.map(([word, value]) => `${word} ${known(value, String)}`).join(", "));
  text(run, rank.run, rank.run);
  row.badges.set(rank.findings, (finding) => finding.kind);
  text(device, known(rank.device, short), rank.device ?? "");
  text(step, known(rank.step, number), known(rank.step_seconds, (seconds) => `${seconds.toFixed(3)} s per step`));
  text(pushed, known(rank.last_push_time, ago), known(rank.last_push_time, stamp));
  text(allocated, known(rank.allocated_bytes, bytes));
  row.spark(keyOf(rank), level(...SIGNAL_KINDS.allocated));
  text(peak, known(rank.recent_peak_allocated_bytes, bytes), `in the last step ${known(rank.peak_allocated_bytes, bytes)}`);
  text(reserved, known(rank.reserved_bytes, bytes), `${known(rank.fragmentation_ratio, percent)} of it not live at the end of the step`);
  text(capacity, known(rank.capacity_bytes, bytes), `headroom ${known(rank.headroom_bytes, bytes)}`);
  const highest = most(rank.pressures.map(([, ratio]) => ratio));
  row.pressure(highest, known(highest, percent), level("HIGH_PRESSURE"));
  hint(pressure, rank.pressures.map(([basis, ratio]) => `${basis} ${percent(ratio)}`).join(", "));
  const isMain = ({ signal }) => signal === "allocated" || signal === "process";
  const main = rank.creep.find((signal) => signal.trend) ?? rank.creep.find(isMain);
  const direction = main ? arrow(main) : "";
  const other = main && main.signal !== "allocated" ? ` ${main.signal.replace("_allocator", "")}` : "";
  toned(slope, main?.trend ? level(...SIGNAL_KINDS[main.signal]) : 0);
  text(row.slope[0], direction);
  text(row.slope[1], main ? slopeText(main) + other : DASH);
  tone(row.slope[1], null, direction === "→" ? "quiet" : "");
  hint(slope, rank.creep.map(slopeWords).join("\n"));
  text(oom, eta(rank), known(rank.oom_eta_steps, (steps) => plural(Math.round(steps), "step")));
  toned(oom, eta(rank) === DASH ? 0 : rank.level);
  text(balance, known(rank.imbalance_ratio, signed));
  toned(balance, level("IMBALANCE"));
}

function makeDevice() {
  const row = tableRow("", "mono", "", "num", "", "");
  const list = row.cells[4].appendChild(element("ul"));
  const processes = new Rows(list, () => ({ node: element("li") }), ({ node }, { words }) => text(node, words));
  return { ...row, used: gauge(row.cells[2], "wide"), processes };
}

function updateDevice(row, device) {
  const [name, uuid, , rest, , xids] = row.cells;
  const { memory, processes, other_processes_bytes: others } = device;
  text(name, [device.index, device.model, device.mig_profile].filter(isKnown).join(" · ") || DASH);
  text(uuid, device.uuid, isKnown(device.parent) ? `part of ${device.parent}` : "");
  const share = memory && memory.total_bytes > 0 ? memory.used_bytes / memory.total_bytes : null;
  row.used(share, memory ? `${bytes(memory.used_bytes)} of ${bytes(memory.total_bytes)} (${known(share, percent)})` : DASH);
  text(rest, known(device.unattributed_bytes, bytes));
  const lines = processes.map(({ pid, used_bytes: used, owner }) => {
    const isPushing = owner && owner[0] !== `pid-${pid}`;
    const whose = isPushing ? `rank ${owner[1]} of ${owner[0]}` : "does not push";
    return { key: pid, words: `${known(used, bytes)} · pid ${pid} · ${whose}` };
  });
  if (isKnown(others)) lines.push({ key: "others", words: `${bytes(others)} · others` });
  const why = ATTRIBUTION_WORDS[device.attribution] ?? (lines.length === 0 ? "none" : "");
  if (why) lines.push({ key: "why", words: why });
  row.processes.set(lines, (line) => line.key);
  const errors = last.gpu.xids.filter(([of]) => of === device.uuid);
  text(xids, errors.map(([, xid, n]) => `Xid ${xid} × ${number(n)}`).join(", ") || "none");
  tone(xids, errors.length > 0 ? 2 : null, errors.length > 0 ? "is-toned" : "");
}

function makeFact() {
  const [name, value] = [element("dt"), element("dd")];
  return { node: element("div", "", name, value), name, value };
}

function updateFact(row, [name, value]) {
  text(row.name, name);
  text(row.value, value);
}

const findingRows = new Capped(new Rows($("findings-list"), makeFinding, updateFinding), $("findings-more"), 6, "finding");
const runRows = new Capped(new Rows($("runs-rows"), makeRun, updateRun), $("runs-more"), 16, "run");
const rankRows = new Capped(new Rows($("ranks-rows"), makeRank, updateRank), $("ranks-more"), 64, "rank");
const deviceRows = new Rows($("devices-rows"), makeDevice, updateDevice);
const factRows = new Rows($("exporter-list"), makeFact, updateFact);

function short(uuid) {
  const [kind, first] = uuid.split("-");
  const index = last.devices.find((device) => device.uuid === uuid)?.index;
  return (isKnown(index) ? `${index} · ` : "") + (first && uuid.length > 16 ? `${kind}-${first}` : uuid);
}

function counts(pairs) {
  const words = pairs.filter(([, n], idx) => idx === 0 || n > 0).map(([name, n]) => `${number(n)} ${name.replaceAll("_", " ")}`);
  return words.join(", ") || DASH;
}

function nvml({ is_up: isUp, last_success_time: time, errors }) {
  if (!isKnown(isUp)) return "is not asked";
  const when = isKnown(time) ? `, last ${ago(time)}` : "";
  const failed = errors.length > 0 ? `; failures: ${counts(errors)}` : "";
  return (isUp ? `answers${when}` : `does not answer${when}`) + failed;
}

function facts({ exporter, records, gpu }) {
  const figures = new Map(exporter.process);
  const figure = (name, format) => known(figures.get(name), format);
  const { count, sum_seconds: sum } = exporter.push_seconds;
  const dropped = exporter.series_dropped.filter(([, n]) => n > 0);
  const collectors = exporter.collectors.map((c) => `${c.collector} ${c.is_success ? "succeeds" : "fails"} (${milli(c.duration_seconds)})`);
  return [
    ["Version", exporter.version || DASH],
    ["Running for", figure("process_start_time_seconds", since)],
    ["Resident memory", figure("process_resident_memory_bytes", bytes)],
    ["Processor time", figure("process_cpu_seconds_total", (seconds) => `${seconds.toFixed(1)} s`)],
    ["NVML", nvml(gpu)],
    ["Pushes", counts(exporter.pushes)],
    ["Records", counts(Object.entries(records))],
    ["Time to take a push, mean", count > 0 ? milli(sum / count) : DASH],
    ["Batches waiting", number(exporter.inbox_depth)],
    ["Collectors", collectors.join(", ") || DASH],
    ["Series", number(exporter.series) + (dropped.length > 0 ? `; left out: ${counts(dropped)}` : "")],
    ["Connections shed", counts(exporter.connections_shed ?? [])],
    ["OTLP exports", exporter.otlp_exports.length > 0 ? counts(exporter.otlp_exports) : "not configured"],
  ];
}

function soonerFirst(a, b) {
  const order = (finding) => finding.evidence.oom_eta_seconds ?? Infinity;
  return LEVELS[b.severity] - LEVELS[a.severity] || (order(a) < order(b) ? -1 : Number(order(a) > order(b)));
}

/** A creep's sentence down to how fast and until when; any other as it is. */
function briefly({ evidence, sentence }) {
  if (!evidence.signal) return sentence;
  const soon = eta(evidence);
  return sentence.split(/[,;]/)[0] + (soon === DASH ? "" : `; out of memory in about ${soon}`);
}

/** The verdict's level, its headline, the line below it, and what a screen reader is told once. */
function judge(status, findings) {
  const { ranks, runs } = status;
  const nPushing = ranks.filter((rank) => isKnown(rank.last_push_time)).length;
  const nSilent = ranks.length - nPushing;
  const pushing = `${plural(nPushing, "rank")} of ${plural(runs.length, "run")} ${nPushing === 1 ? "pushes" : "push"}`;
  const silent = `${nSilent} ${nSilent === 1 ? "process does" : "processes do"} not push`;
  const who = [nPushing > 0 ? pushing : "", nSilent > 0 ? silent : ""].filter(Boolean).join(", ");
  if (ranks.length === 0) return [null, "No rank pushes yet", "", "No rank pushes yet"];
  if (findings.length === 0) return [0, `Nothing is wrong: ${who}, no finding`, "", "Nothing is wrong"];
  const [worst] = findings;
  const headline = `${worst.status} on rank ${worst.rank} of run ${worst.run}`;
  const tally = ["critical", "warning", "info"]
    .map((severity) => [findings.filter((finding) => finding.severity === severity).length, severity])
    .filter(([n]) => n > 0)
    .map(([n, severity]) => `${number(n)} ${severity}`);
  const more = `${plural(findings.length, "finding")} (${tally.join(", ")}); ${who}.`;
  return [LEVELS[worst.severity], `${headline}: ${briefly(worst)}`, more, `${worst.severity}: ${headline}`];
}

function curl() {
  const url = document.querySelector('meta[name="push-url"]').content;
  const record = '{"run":"demo","rank":0,"step":1,"allocated_bytes":1073741824}';
  const base = url && !url.includes("{{") ? url.replace(/\/$/, "") : "http://127.0.0.1:9478";
  const where = base.startsWith("unix:") ? `--unix-socket ${base.slice(5)} http://localhost/v1/steps` : `${base}/v1/steps`;
  return `curl -H 'content-type: application/json' -d '${record}' ${where}`;
}

/** Every word must occur in what the table shows of a rank; a number is the rank itself. */
function matches(rank, words) {
  const shown = [rank.run, rank.device ?? "", ...rank.findings.flatMap((f) => [f.status, f.kind, f.severity])];
  const hay = shown.join("\n").toLowerCase();
  return words.every((word) => (/^\d+$/.test(word) ? Number(word) === rank.rank : hay.includes(word)));
}

let last = null;
let failedSince = null;

function render() {
  if (!last) return;
  const findings = [...last.findings].sort(soonerFirst);
  const ofRank = grouped(findings, keyOf);
  const ranks = last.ranks.map((rank) => {
    const own = ofRank.get(keyOf(rank)) ?? [];
    return { ...rank, findings: own, level: levelOf(own) };
  });
  const members = grouped(ranks, (rank) => rank.run);
  const runs = last.runs.map((run) => {
    const own = members.get(run.run) ?? [];
    return { ...run, members: own, findings: own.flatMap((rank) => rank.findings) };
  });

  const [level, headline, more, said] = judge(last, findings);
  tone($("verdict"), level, "verdict");
  text($("verdict-text"), headline);
  text($("verdict-more"), more);
  show($("verdict-more"), more !== "");
  show($("push-example"), ranks.length === 0);
  text($("curl"), curl());
  if (failedSince === null) text($("said"), said);
  const title = level > 0 ? `${findings[0].severity}: ${findings[0].status} · stepmem` : "stepmem";
  if (document.title !== title) document.title = title;

  text($("findings-count"), number(findings.length));
  findingRows.set(findings, (finding) => `${finding.kind} ${keyOf(finding)}`);
  text($("runs-count"), number(runs.length));
  runRows.set(runs, (run) => run.run);

  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = ranks.filter((rank) => matches(rank, words)).sort((a, b) => b.level - a.level);
  text($("ranks-count"), words.length > 0 ? `${number(wanted.length)} of ${number(ranks.length)}` : number(ranks.length));
  rankRows.set(wanted, keyOf);

  const hasDevices = last.devices.length > 0;
  const drivers = new Set(last.devices.map((device) => device.driver_version).filter(isKnown));
  const driver = drivers.size > 0 ? ` · driver ${[...drivers].join(", ")}` : "";
  text($("devices-count"), hasDevices ? number(last.devices.length) + driver : "");
  text($("devices-note"), `No device is read: NVML ${nvml(last.gpu)}. What ranks push is judged all the same.`);
  show($("devices-note"), !hasDevices);
  show($("devices-box"), hasDevices);
  deviceRows.set(last.devices, (device) => device.uuid);
  factRows.set(facts(last), ([name]) => name);
  text($("version"), last.exporter.version);

  const shown = { verdict: true, findings: findings.length > 0, runs: runs.length > 0, ranks: ranks.length > 0 };
  for (const [id, isShown] of Object.entries({ ...shown, devices: true, exporter: true })) show($(id), isShown);
}

function grouped(items, key) {
  const groups = new Map();
  for (const item of items) {
    const group = groups.get(key(item));
    if (group) group.push(item);
    else groups.set(key(item), [item]);
  }
  return groups;
}

function answered(status) {
  last = status;
  failedSince = null;
  remember(status);
  live("live", true);
  show($("unanswered"), false);
  document.body.classList.remove("is-stale");
}

function unanswered(error) {
  failedSince ??= Date.now();
  const when = new Date(failedSince).toLocaleTimeString();
  const kept = last ? ` Below is its last answer, of ${stamp(last.time)}.` : "";
  const why = error.name === "TimeoutError" ? "no answer in time" : error.message;
  text($("unanswered"), `The exporter has not answered since ${when} (${duration((Date.now() - failedSince) / 1000)}): ${why}.${kept}`);
  text($("said"), `The exporter has not answered since ${when}`);
  document.title = "no answer · stepmem";
  live("no answer", false);
  show($("unanswered"), true);
  document.body.classList.add("is-stale");
}

function live(words, isLive) {
  text($("live"), words);
  $("live").classList.toggle("is-live", isLive);
  show($("live"), true);
}

let timer = 0;
let isPolling = false;

async function poll() {
  clearTimeout(timer);
  if (isPolling) return;
  isPolling = true;
  const began = performance.now();
  try {
    const response = await fetch("api/v1/status", { cache: "no-store", signal: AbortSignal.timeout(ANSWER_WITHIN_MS) });
    if (!response.ok) throw new Error(`HTTP ${response.status}`);
    answered(await response.json());
  } catch (error) {
    unanswered(error);
  }
  try {
    render();
  } finally {
    isPolling = false;
    // A round that took long, as with a thousand ranks on a slow line, makes the next one wait longer.
    const took = performance.now() - began;
    if (document.visibilityState === "visible") timer = setTimeout(poll, Math.max(POLL_MS - took, 2 * took));
  }
}

function attend() {
  if (document.visibilityState === "visible") return poll();
  clearTimeout(timer);
  if (last) live("paused", false);
}

// Relative, so that it also works behind a proxy that serves the page below a path.
$("metrics").setAttribute("href", document.querySelector('meta[name="telemetry-path"]').content.replace(/^\//, ""));
$("filter").addEventListener("input", render);
document.addEventListener("visibilitychange", attend);
attend();
