// The figures of the exporter itself.

import { $, Rows, element, show, text } from "./dom.js";
import { NO_DRIVER, nvmlState } from "./devices.js";
import { DASH, age, bytes, counts, known, milliseconds, number } from "./format.js";

export function exporterSection() {
  const rows = new Rows($("exporter-list"), make, update);
  return ({ status, now }) => {
    rows.set(facts(status, now), ([name]) => name);
    text($("version"), status.exporter.version);
    show($("exporter"), true);
  };
}

function make() {
  const [name, value] = [element("dt"), element("dd")];
  return { node: element("div", "", name, value), name, value };
}

function update(row, [name, value]) {
  text(row.name, name);
  text(row.value, value);
}

function facts({ exporter, records, gpu }, now) {
  const figure = (name, format) => known(exporter.process[name], format);
  const { count, sum_seconds: sum } = exporter.push_seconds;
  const dropped = Object.entries(exporter.series_dropped).filter(([, n]) => n > 0);
  const exports = Object.entries(exporter.otlp_exports);
  const nvml = nvmlState(gpu, now);
  const collectors = (exporter.collectors ?? []).filter((of) => nvml !== NO_DRIVER || of.collector !== "nvml");
  return [
    ["Version", exporter.version || DASH],
    ["Running for", figure("process_start_time_seconds", (time) => age(time, now))],
    ["Resident memory", figure("process_resident_memory_bytes", bytes)],
    ["CPU time", figure("process_cpu_seconds_total", (seconds) => `${seconds.toFixed(1)} s`)],
    ["NVML", nvml],
    ["Pushes", counts(Object.entries(exporter.pushes))],
    ["Records", counts(Object.entries(records))],
    ["Mean push duration", count > 0 ? milliseconds(sum / count) : DASH],
    ["Batches waiting", number(exporter.inbox_depth)],
    ["Collectors", collectors.map(collector).join(", ") || DASH],
    ["Series", number(exporter.series) + (dropped.length > 0 ? `; left out: ${counts(dropped)}` : "")],
    ["Connections shed", counts(Object.entries(exporter.connections_shed))],
    ["OTLP exports", exports.length > 0 ? counts(exports) : "not configured"],
  ];
}

function collector({ collector: name, is_success: isSuccess, duration_seconds: seconds }) {
  return `${name} ${isSuccess ? "succeeded" : "failed"} in ${milliseconds(seconds)}`;
}
