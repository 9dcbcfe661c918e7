// The table of unmanaged processes, the worst first: what the driver reports of them, judged.

import { $, Rows, element, hint, show, tableRow, text, tone } from "./dom.js";
import { DASH, bytes, isKnown, known, number, oomEta, percent } from "./format.js";
import { Fitted } from "./fit.js";
import { sparkline } from "./sparks.js";
import { Capped, badges, gauge, mark, toned } from "./parts.js";
import { PENDING, levelOfOom, levelWhere } from "./severity.js";
import { perHour, slopeCell } from "./slopes.js";
import { processKey } from "./view.js";

const SHOWN = 16;

export function processesSection(redraw) {
  const rows = new Rows($("processes-rows"), make, update);
  const limits = { button: $("processes-more"), limit: SHOWN, noun: "process", redraw };
  const capped = new Capped(rows, limits);
  const fitted = new Fitted($("processes-rows"), redraw);
  return (view) => {
    text($("processes-count"), number(view.processes.length));
    capped.set([...view.processes].sort((a, b) => b.level - a.level), processKey, view);
    show($("processes"), view.processes.length > 0);
    fitted.fit(`${view.processes.length} ${view.findings.length}`);
  };
}

function make() {
  const row = tableRow("pin", "found", "mono", "num", "", "num", "", "num", "num");
  const { cells } = row;
  const [dot, label] = [mark(), element("span")];
  cells[0].append(dot, label);
  return {
    ...row,
    dot,
    label,
    badges: badges(cells[1]),
    spark: sparkline(cells[4]),
    pressure: gauge(cells[6]),
    slope: slopeCell(cells[7]),
  };
}

function update(row, process, { cellName }) {
  const [, , device, used, , capacity, pressure, slope, oom] = row.cells;
  const { findings, level, pending, creep } = process;
  tone(row.node, level || null, level ? "is-found" : "");
  tone(row.dot, level === 0 && pending ? PENDING : level, "mark");
  text(row.label, isKnown(process.name) ? `${process.pid} (${process.name})` : String(process.pid));
  row.badges(findings, pending);
  text(device, cellName(process.uuid), process.uuid);
  text(used, bytes(process.used_bytes));
  const ofGrowth = levelWhere(findings, (evidence) => "signal" in evidence);
  row.spark(processKey(process), ofGrowth);
  text(capacity, known(process.capacity_bytes, bytes));
  row.pressure(process.pressure_ratio, known(process.pressure_ratio, percent), levelWhere(findings, (evidence) => "basis" in evidence));
  hint(pressure, `headroom ${known(process.headroom_bytes, bytes)}`);
  row.slope(creep, creep ? perHour(creep) : DASH, creep ? [creep] : []);
  toned(slope, creep?.trend ? ofGrowth : 0);
  const soon = oomEta(process);
  text(oom, soon);
  toned(oom, soon === DASH ? 0 : levelOfOom(findings));
}
