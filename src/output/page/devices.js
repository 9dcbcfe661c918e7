// The table of devices, the worst first: their memory, their processes and their Xid errors.

import { $, Rows, element, show, tableRow, text, tone } from "./dom.js";
import { Fitted } from "./fit.js";
import { DASH, bytes, counts, isKnown, known, number, percent, plural } from "./format.js";
import { badges, gauge, mark } from "./parts.js";
import { when } from "./recorded.js";
import { deviceKey } from "./view.js";

const ATTRIBUTION_WORDS = {
  own_pid_namespace: "not visible from this PID namespace: set shareProcessNamespace: true in the pod to see and judge them",
  foreign_pid_namespace: "listed with ids of another PID namespace, which are unknown here: set hostPID, or shareProcessNamespace in the pod",
  memory_hidden: "visible, but the driver hides their memory",
  unsupported: "the driver has no process list",
};

export function devicesSection(redraw) {
  const rows = new Rows($("devices-rows"), make, update);
  const fitted = new Fitted($("devices-rows"), redraw);
  return (view) => {
    const { devices } = view;
    const drivers = new Set(devices.map((device) => device.driver_version).filter(isKnown));
    const driver = drivers.size > 0 ? ` · driver ${[...drivers].join(", ")}` : "";
    text($("devices-count"), devices.length > 0 ? number(devices.length) + driver : "");
    const note = noteOf(view);
    text($("devices-note"), note);
    show($("devices-note"), note !== "");
    show($("devices-box"), devices.length > 0);
    rows.set([...devices].sort((a, b) => b.level - a.level), deviceKey, view);
    show($("devices"), true);
    fitted.fit(`${devices.length} ${view.findings.length}`);
  };
}

/** Why there are no readings, of all devices or of those that a finding has lost; empty where all are read. */
function noteOf({ devices, status, now }) {
  const nUnread = devices.filter((device) => device.isUnread).length;
  if (devices.length > 0) {
    return nUnread > 0 ? `${number(nUnread)} of ${plural(devices.length, "device")} ${nUnread === 1 ? "gives" : "give"} no reading.` : "";
  }
  const why = status.exporter.devices_hint ?? (hasNoDriver(status.gpu) ? NO_DRIVER : `NVML ${nvmlState(status.gpu, now)}`);
  return `No device readings: ${why}. Pushed steps are still judged.`;
}

export const NO_DRIVER = "no NVIDIA driver here";
const NO_DRIVER_CODES = ["library_missing", "driver_not_loaded"];
const failuresOf = ({ errors }) => Object.entries(errors).filter(([, n]) => n > 0);

/** Whether all that is known of NVML is that the machine has none. */
function hasNoDriver(gpu) {
  const failures = failuresOf(gpu);
  return gpu.is_up === false && !isKnown(gpu.last_success_time) && failures.length > 0 && failures.every(([code]) => NO_DRIVER_CODES.includes(code));
}

/** What NVML does, as the rest of a sentence. */
export function nvmlState(gpu, now) {
  const { is_up: isUp, last_success_time: time } = gpu;
  if (!isKnown(isUp)) return "is not polled";
  if (hasNoDriver(gpu)) return NO_DRIVER;
  const last = isKnown(time) ? `, last ${when(time, now)}` : "";
  const failures = failuresOf(gpu);
  const failed = failures.length > 0 ? `; failures: ${counts(failures)}` : "";
  return (isUp ? `answers${last}` : `does not answer${last}`) + failed;
}

function make() {
  const row = tableRow("pin wrap", "found", "mono", "", "num", "wrap", "wrap");
  const { cells } = row;
  const [dot, label] = [mark(), element("span")];
  cells[0].append(dot, label);
  const list = cells[5].appendChild(element("ul"));
  const processes = new Rows(list, () => ({ node: element("li") }), ({ node }, { words }) => text(node, words));
  return { ...row, dot, label, badges: badges(cells[1]), used: gauge(cells[3], "wide"), processes };
}

function update(row, device, { status }) {
  const [, , uuid, , unattributed, , xids] = row.cells;
  const { memory, level } = device;
  tone(row.node, level || null, level ? "is-found" : "");
  // Only findings are judged of a device: without one it has no mark, rather than a tick next to its Xid errors.
  tone(row.dot, level, "mark");
  show(row.dot, level > 0);
  const name = [device.index, device.model, device.mig_profile].filter(isKnown).join(" · ");
  text(row.label, name || (device.isUnread ? "No reading" : DASH));
  row.badges(device.findings);
  text(uuid, device.uuid, isKnown(device.parent) ? `part of ${device.parent}` : "");
  const share = memory && memory.total_bytes > 0 ? memory.used_bytes / memory.total_bytes : null;
  row.used(share, memory ? `${bytes(memory.used_bytes)} of ${bytes(memory.total_bytes)} (${known(share, percent)})` : DASH);
  text(unattributed, known(device.unattributed_bytes, bytes));
  row.processes.set(processLines(device), (line) => line.key);
  const errors = status.gpu.xids.filter(({ uuid: of }) => of === device.uuid);
  text(xids, errors.map(({ xid, count }) => `Xid ${xid} × ${number(count)}`).join(", ") || "none");
  tone(xids, errors.length > 0 ? 2 : null, errors.length > 0 ? "is-toned wrap" : "wrap");
}

function processLines(device) {
  if (device.isUnread) return [{ key: "unread", words: DASH }];
  const lines = device.processes.map(({ pid, name, used_bytes: used, owner, is_gone: isGone }) => {
    const whose = owner ? `rank ${owner.rank} of ${owner.run}` : isGone ? "no such process" : "unmanaged";
    return { key: pid, words: `${known(used, bytes)} · pid ${pid}${isKnown(name) ? ` (${name})` : ""} · ${whose}` };
  });
  const others = device.other_processes_bytes;
  if (isKnown(others)) lines.push({ key: "others", words: `${bytes(others)} · others` });
  const why = ATTRIBUTION_WORDS[device.attribution] ?? (lines.length === 0 ? "none" : "");
  if (why) lines.push({ key: "why", words: why });
  return lines;
}
