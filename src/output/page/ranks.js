// The ranks that push.

import { $, Capped, Rows, badges, element, gauge, hint, mark, tableRow, text, tone } from "./dom.js";
import { DASH, ago, bytes, eta, isKnown, known, levelOf, most, number, percent, plural, signed, stamp } from "./format.js";
import { arrow, slopeText, slopeWords } from "./slopes.js";
import { sparkline } from "./sparks.js";
import { state } from "./state.js";
import { aboutImbalance, aboutPressure, aboutSignal, subjectKey } from "./subjects.js";

function makeRank() {
  const num = "num";
  const row = tableRow("pin", "name-cell", "found", "mono", num, num, num, "", num, num, num, "", num, num, num);
  const { cells } = row;
  const [dot, label] = [mark(), element("span")];
  cells[0].append(dot, label);
  const list = cells[2].appendChild(element("span"));
  const young = cells[2].appendChild(element("span", "quiet"));
  const slope = ["arrow", ""].map((className) => cells[12].appendChild(element("span", className)));
  return { ...row, dot, label, slope, badges: badges(list), young, spark: sparkline(cells[7]), pressure: gauge(cells[11]) };
}

function updateRank(row, rank) {
  const [name, run, , device, step, pushed, allocated, , peak, reserved, capacity, pressure, slope, oom, balance] = row.cells;
  const toned = (node, value) => tone(node, value || null, value ? "num is-toned" : "num");
  tone(row.node, rank.level || null, rank.level ? "is-found" : "");
  tone(row.dot, rank.is_judged === false && rank.level === 0 ? null : rank.level, "mark");
  text(row.label, String(rank.rank));
  const { attempt, pid, local_rank: local, node_rank: host, world_size: size } = rank;
  const said = Object.entries({ "of ranks": size, "local rank": local, node: host, pid, attempt });
  hint(name, said.map(([word, value]) => `${word} ${known(value, String)}`).join(", "));
  text(run, rank.run, rank.run);
  row.badges.set(rank.findings, (finding) => finding.kind);
  const isYoung = rank.is_judged === false && rank.findings.length === 0;
  const from = isKnown(rank.judging_from_step) ? `judging from step ${number(rank.judging_from_step)}` : "not judged yet";
  text(row.young, isYoung ? from : "", isYoung ? "Creep detection has not seen enough of this rank yet" : "");
  text(device, known(rank.device, short), rank.device ?? "");
  text(step, known(rank.step, number), known(rank.step_seconds, (seconds) => `${seconds.toFixed(3)} s per step`));
  text(pushed, ago(rank.last_push_time), stamp(rank.last_push_time));
  text(allocated, known(rank.allocated_bytes, bytes));
  row.spark(subjectKey(rank), levelOf(aboutSignal(rank.findings, "allocated")));
  text(peak, known(rank.recent_peak_allocated_bytes, bytes), `in the last step ${known(rank.peak_allocated_bytes, bytes)}`);
  text(reserved, known(rank.reserved_bytes, bytes), `${known(rank.fragmentation_ratio, percent)} of it not live at the end of the step`);
  text(capacity, known(rank.capacity_bytes, bytes), `headroom ${known(rank.headroom_bytes, bytes)}`);
  const highest = most(rank.pressures.map(([, ratio]) => ratio));
  row.pressure(highest, known(highest, percent), levelOf(aboutPressure(rank.findings)));
  hint(pressure, rank.pressures.map(([basis, ratio]) => `${basis} ${percent(ratio)}`).join(", "));
  const main = rank.creep.find((signal) => signal.trend) ?? rank.creep.find(({ signal }) => signal === "allocated");
  const direction = main ? arrow(main) : "";
  const other = main && main.signal !== "allocated" ? ` ${main.signal.replace("_allocator", "")}` : "";
  toned(slope, main?.trend ? levelOf(aboutSignal(rank.findings, main.signal)) : 0);
  text(row.slope[0], direction);
  text(row.slope[1], main ? slopeText(main) + other : DASH);
  tone(row.slope[1], null, direction === "→" ? "quiet" : "");
  hint(slope, rank.creep.map(slopeWords).join("\n"));
  text(oom, eta(rank), known(rank.oom_eta_steps, (steps) => plural(Math.round(steps), "step")));
  toned(oom, eta(rank) === DASH ? 0 : rank.level);
  text(balance, known(rank.imbalance_ratio, signed));
  toned(balance, levelOf(aboutImbalance(rank.findings)));
}

function short(uuid) {
  const [kind, first] = uuid.split("-");
  const index = state.status.devices.find((device) => device.uuid === uuid)?.index;
  return (isKnown(index) ? `${index} · ` : "") + (first && uuid.length > 16 ? `${kind}-${first}` : uuid);
}

/** Every word must occur in what the table shows of a rank; a number is the rank itself. */
function matches(rank, words) {
  const shown = [rank.run, rank.device ?? "", ...rank.findings.flatMap((f) => [f.status, f.kind, f.severity])];
  const hay = shown.join("\n").toLowerCase();
  return words.every((word) => (/^\d+$/.test(word) ? Number(word) === rank.rank : hay.includes(word)));
}

const rows = new Capped(new Rows($("ranks-rows"), makeRank, updateRank), $("ranks-more"), 64, "rank");

export function showRanks(ranks) {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = ranks.filter((rank) => matches(rank, words)).sort((a, b) => b.level - a.level);
  text($("ranks-count"), words.length > 0 ? `${number(wanted.length)} of ${number(ranks.length)}` : number(ranks.length));
  rows.set(wanted, subjectKey);
}
