// The table of ranks, the worst first, and its filter.

import { $, attribute, element, hint, show, tableRow, text, tone } from "./dom.js";
import { Fitted } from "./fit.js";
import { DASH, bytes, date, duration, known, most, nounOf, number, oomEta, percent, plural, signed, timeLeft } from "./format.js";
import { changeState, stateOf } from "./address.js";
import { badges, gauge, mark, toned } from "./parts.js";
import { when } from "./recorded.js";
import { activity, rankLink } from "./rank_words.js";
import { sparkline } from "./sparks.js";
import { PENDING, levelOfOom, levelWhere } from "./severity.js";
import { perHour, perStep, slopeCell } from "./slopes.js";
import { rankKey } from "./view.js";
import { VirtualRows } from "./virtual.js";

const NOTED = 8;

export function ranksSection(redraw) {
  const rows = new VirtualRows($("ranks-rows"), { make, update, redraw });
  const fitted = new Fitted($("ranks-rows"), redraw);
  $("filter").value = stateOf("filter");
  $("filter").addEventListener("input", () => {
    changeState({ filter: $("filter").value });
    redraw();
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input, textarea")) return;
    event.preventDefault();
    $("filter").focus();
  });
  return (view) => {
    const { ranks } = view;
    const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = ranks.filter((rank) => matches(rank, words)).sort((a, b) => b.level - a.level || soonest(a, b));
    text($("ranks-count"), words.length > 0 ? `${number(wanted.length)} of ${number(ranks.length)}` : number(ranks.length));
    text($("ranks-none"), wanted.length === 0 ? `No rank matches “${$("filter").value.trim()}”.` : "");
    show($("ranks-none"), wanted.length === 0);
    show(rows.box, wanted.length > 0);
    rows.set(wanted, rankKey, view);
    text($("ranks-note"), hostNote(wanted));
    show($("ranks-note"), wanted.some((rank) => rank.host?.sentence));
    show($("ranks"), ranks.length > 0);
    // One run is named above; of several, a rank is none without its run.
    attribute($("ranks-run"), "data-drop", view.runs.length === 1 ? "0" : "99");
    fitted.fit(`${wanted.length} ${view.findings.length}`);
  };
}

/** Orders ranks by the time left, those that ended or are silent behind the others. */
function soonest(a, b) {
  const isOver = ({ state }) => Number(state === "ended" || state === "silent");
  const [left, right] = [timeLeft(a), timeLeft(b)];
  return isOver(a) - isOver(b) || (left === right ? 0 : left - right);
}

/** Whether every word occurs in what the table shows of a rank, its heads too; a number is the rank itself. */
function matches(rank, words) {
  const findings = rank.findings.flatMap((finding) => [finding.status, finding.kind, finding.severity]);
  const shown = ["rank", "run", "device", rank.run, rank.device ?? "", rank.pending?.label ?? "", ...findings];
  const hay = shown.join("\n").toLowerCase();
  return words.every((word) => (/^\d+$/.test(word) ? Number(word) === rank.rank : hay.includes(word)));
}

/** Puts the shared memory and the child processes of the first ranks that have any into words. */
function hostNote(ranks) {
  const noted = ranks.filter((rank) => rank.host?.sentence);
  const several = new Set(noted.map((rank) => rank.run)).size > 1;
  const said = noted.slice(0, NOTED).map((rank) => `${several ? `Run ${rank.run}, rank` : "Rank"} ${rank.rank}: ${rank.host.sentence}.`);
  const more = noted.length > NOTED ? ` And ${plural(noted.length - NOTED, "more rank")}.` : "";
  return said.join(" ") + more;
}

function make() {
  const num = "num";
  const row = tableRow("pin", "name-cell", "found", "mono", num, num, num, "", num, num, num, "", num, num, num);
  const { cells } = row;
  const [dot, label] = [mark(), element("a")];
  cells[0].append(dot, label);
  return {
    ...row,
    dot,
    label,
    badges: badges(cells[2]),
    spark: sparkline(cells[7]),
    pressure: gauge(cells[11]),
    slope: slopeCell(cells[12]),
  };
}

function update(row, rank, view) {
  updateIdentity(row, rank, view);
  updateMemory(row, rank);
  updateGrowth(row, rank);
}

function updateIdentity(row, rank, { now, cellName }) {
  const [name, run, , device, step, pushed] = row.cells;
  const isOver = rank.state === "ended" || rank.state === "silent";
  const isPending = rank.level === 0 && (rank.pending || isOver);
  tone(row.node, rank.level || null, `${rank.level ? "is-found" : ""}${isOver ? " is-over" : ""}`.trim());
  tone(row.dot, isPending ? PENDING : rank.level, "mark");
  text(row.label, String(rank.rank));
  attribute(row.label, "href", rankLink(rank));
  attribute(row.label, "aria-label", `Rank ${rank.rank} of run ${rank.run}: its story`);
  const { attempt, pid, local_rank: local, node_rank: node, world_size: size } = rank;
  const identity = Object.entries({ "of ranks": size, "local rank": local, node, pid, attempt });
  hint(name, identity.map(([word, value]) => `${word} ${known(value, String)}`).join(", "));
  text(run, rank.run, rank.run);
  row.badges(rank.findings, rank.pending, activity(rank));
  text(device, known(rank.device, cellName), rank.device ?? "");
  text(step, known(rank.step, number), known(rank.step_seconds, (seconds) => `${seconds.toFixed(3)} s per step`));
  text(pushed, known(rank.last_push_time, (time) => when(time, now)), known(rank.last_push_time, date));
}

function updateMemory(row, rank) {
  const [, , , , , , allocated, , peak, reserved, capacity, pressure] = row.cells;
  const levelOfSignal = (signal) => levelWhere(rank.findings, (evidence) => evidence.signal === signal);
  text(allocated, known(rank.allocated_bytes, bytes));
  row.spark(rankKey(rank), levelOfSignal("allocated"));
  text(peak, known(rank.recent_peak_allocated_bytes, bytes), `in the last step ${known(rank.peak_allocated_bytes, bytes)}, since the process started ${known(rank.high_water_allocated_bytes, bytes)}`);
  text(reserved, known(rank.reserved_bytes, bytes), `${known(rank.fragmentation_ratio, percent)} of it not in use at the peak of the step`);
  const limit = rank.capacity_set_by;
  text(capacity, known(rank.capacity_bytes, bytes) + (limit ? ` (${limit})` : ""), `${limit ? `set by the ${limit}, of ${known(rank.total_bytes, bytes)}; ` : ""}headroom ${known(rank.headroom_bytes, bytes)}${rank.headroom_basis ? `, based on ${rank.headroom_basis}` : ""}`);
  const pressures = Object.entries(rank.pressures ?? {});
  const highest = most(pressures.filter(([basis]) => basis !== "host").map(([, ratio]) => ratio));
  row.pressure(highest, known(highest, percent), levelWhere(rank.findings, (evidence) => "basis" in evidence && evidence.basis !== "host"));
  hint(pressure, pressures.map(([basis, ratio]) => `${basis} ${percent(ratio)}`).join(", "));
}

function updateGrowth(row, rank) {
  const [slope, oom, imbalance] = row.cells.slice(12);
  const main = rank.creep.find((signal) => signal.trend) ?? rank.creep.find(({ signal }) => signal === "allocated");
  const other = main && main.signal !== "allocated" ? ` ${main.signal.split("_")[0]}` : "";
  const figure = (signal) => (nounOf(rank) === "call" ? `${perHour(signal)}/h` : perStep(signal));
  row.slope(main, main ? figure(main) + other : DASH, rank.creep.map((signal) => ({ ...signal, unit: rank.unit })));
  toned(slope, main?.trend ? levelWhere(rank.findings, (evidence) => evidence.signal === main.signal) : 0);
  const soon = oomEta(rank);
  text(oom, soon, known(rank.oom_eta_steps, (steps) => plural(Math.round(steps), nounOf(rank))));
  toned(oom, soon === DASH ? 0 : levelOfOom(rank.findings));
  text(imbalance, known(rank.imbalance_ratio, signed));
  toned(imbalance, levelWhere(rank.findings, (evidence) => "imbalance_ratio" in evidence));
}
