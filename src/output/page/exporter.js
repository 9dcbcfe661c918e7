// The exporter itself.

import { $, Rows, element, text } from "./dom.js";
import { DASH, ago, bytes, isKnown, known, milli, number, since } from "./format.js";

function makeFact() {
  const [name, value] = [element("dt"), element("dd")];
  return { node: element("div", "", name, value), name, value };
}

function updateFact(row, [name, value]) {
  text(row.name, name);
  text(row.value, value);
}

function counts(pairs) {
  const words = pairs.filter(([, n], idx) => idx === 0 || n > 0).map(([name, n]) => `${number(n)} ${name.replaceAll("_", " ")}`);
  return words.join(", ") || DASH;
}

export function nvml({ is_up: isUp, last_success_time: time, errors }) {
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

const rows = new Rows($("exporter-list"), makeFact, updateFact);

export function showExporter(status) {
  rows.set(facts(status), ([name]) => name);
  text($("version"), status.exporter.version);
}
