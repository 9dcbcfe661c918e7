// What findings are about: a rank (run, rank), a process that does not push (uuid, pid), or a device (uuid).

import { LEVELS, eta, DASH } from "./format.js";

/** The same for a finding and for the rank, process or device that it is about. */
export const subjectKey = ({ run, rank, uuid, pid }) =>
  run === undefined ? `${pid ?? ""} ${uuid}` : `${rank} of ${run}`;

export function subjectWords({ run, rank, uuid, pid }) {
  if (run !== undefined) return `rank ${rank} of run ${run}`;
  return pid === undefined ? `device ${uuid}` : `process ${pid} on ${uuid}`;
}

/** The findings about growth of one signal, about pressure, about imbalance: by what their evidence names. */
export const aboutSignal = (findings, signal) => findings.filter(({ evidence }) => evidence.signal === signal);
export const aboutPressure = (findings) => findings.filter(({ evidence }) => evidence.basis !== undefined);
export const aboutImbalance = (findings) => findings.filter(({ evidence }) => evidence.imbalance_ratio !== undefined);

/** Sorts the worst first, and of equals the one that is out of memory first. */
export function soonerFirst(a, b) {
  const order = (finding) => finding.evidence.oom_eta_seconds ?? Infinity;
  return LEVELS[b.severity] - LEVELS[a.severity] || (order(a) < order(b) ? -1 : Number(order(a) > order(b)));
}

/** A creep's sentence down to how fast and until when; any other as it is. */
export function briefly({ evidence, sentence }) {
  if (!evidence.signal) return sentence;
  const soon = eta(evidence);
  return sentence.split(/[,;]/)[0] + (soon === DASH ? "" : `; out of memory in about ${soon}`);
}
