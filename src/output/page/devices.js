// The devices as NVML last read them.

import { $, Rows, element, gauge, show, tableRow, text, tone } from "./dom.js";
import { DASH, bytes, isKnown, known, number, percent } from "./format.js";
import { nvml } from "./exporter.js";
import { state } from "./state.js";

const ATTRIBUTION_WORDS = {
  own_pid_namespace: "in another PID namespace, not visible from here",
  foreign_pid_namespace: "listed by the ids of another PID namespace, unknown here",
  memory_hidden: "visible, but the driver hides their memory",
  unsupported: "the driver lists no processes",
};

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
    const whose = owner ? `rank ${owner.rank} of ${owner.run}` : "does not push";
    return { key: pid, words: `${known(used, bytes)} · pid ${pid} · ${whose}` };
  });
  if (isKnown(others)) lines.push({ key: "others", words: `${bytes(others)} · others` });
  const why = ATTRIBUTION_WORDS[device.attribution] ?? (lines.length === 0 ? "none" : "");
  if (why) lines.push({ key: "why", words: why });
  row.processes.set(lines, (line) => line.key);
  const errors = state.status.gpu.xids.filter(([of]) => of === device.uuid);
  text(xids, errors.map(([, xid, n]) => `Xid ${xid} × ${number(n)}`).join(", ") || "none");
  tone(xids, errors.length > 0 ? 2 : null, errors.length > 0 ? "is-toned" : "");
}

const rows = new Rows($("devices-rows"), makeDevice, updateDevice);

export function showDevices({ devices, gpu }) {
  const hasDevices = devices.length > 0;
  const drivers = new Set(devices.map((device) => device.driver_version).filter(isKnown));
  const driver = drivers.size > 0 ? ` · driver ${[...drivers].join(", ")}` : "";
  text($("devices-count"), hasDevices ? number(devices.length) + driver : "");
  text($("devices-note"), `No device is read: NVML ${nvml(gpu)}. Ranks that push are judged all the same.`);
  show($("devices-note"), !hasDevices);
  show($("devices-box"), hasDevices);
  rows.set(devices, (device) => device.uuid);
}
