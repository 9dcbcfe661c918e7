// The processes that do not push: what NVML reports of them, judged in time.

import { $, Capped, Rows, badges, gauge, hint, mark, tableRow, text, tone, element } from "./dom.js";
import { DASH, bytes, eta, isKnown, known, levelOf, number, percent, stamp } from "./format.js";
import { arrow, slopeText } from "./slopes.js";
import { aboutPressure, subjectKey } from "./subjects.js";

function makeProcess() {
  const row = tableRow("pin", "mono", "found", "num", "num", "", "num", "num");
  const [dot, label] = [mark(), element("span")];
  row.cells[0].append(dot, label);
  return { ...row, dot, label, badges: badges(row.cells[2]), pressure: gauge(row.cells[5]) };
}

function updateProcess(row, process) {
  const [, device, , used, capacity, , slope, oom] = row.cells;
  const { creep, level } = process;
  tone(row.node, level || null, level ? "is-found" : "");
  tone(row.dot, level, "mark");
  text(row.label, String(process.pid));
  text(device, process.uuid, process.uuid);
  row.badges.set(process.findings, (finding) => finding.kind);
  text(used, bytes(process.used_bytes));
  text(capacity, known(process.capacity_bytes, bytes), `headroom ${known(process.headroom_bytes, bytes)}`);
  row.pressure(process.pressure_ratio, known(process.pressure_ratio, percent), levelOf(aboutPressure(process.findings)));
  text(slope, isKnown(creep) ? `${arrow(creep)} ${slopeText(creep)}` : DASH);
  const trend = creep?.trend;
  hint(slope, trend ? `${bytes(trend.growth_bytes)} since ${stamp(trend.onset_time)}` : "");
  text(oom, eta(process));
}

const rows = new Capped(new Rows($("processes-rows"), makeProcess, updateProcess), $("processes-more"), 64, "process");

export function showProcesses(processes) {
  text($("processes-count"), number(processes.length));
  rows.set(processes, subjectKey);
}
