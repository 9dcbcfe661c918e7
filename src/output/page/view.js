// A status as the page shows it: each rank, process, device and run with its findings, the worst first.

import { isKnown, number, shortUuid } from "./format.js";
import { severitiesOf } from "./recorded.js";
import { SEVERITIES, levelOf, worstFirst } from "./severity.js";

export const rankKey = ({ run, rank }) => `rank ${rank} ${run}`;
export const processKey = ({ uuid, pid }) => `process ${pid} ${uuid}`;
export const deviceKey = ({ uuid }) => `device ${uuid}`;

/** The key of what a finding is about. */
export function subjectKey(finding) {
  if (isKnown(finding.run)) return rankKey(finding);
  return isKnown(finding.pid) ? processKey(finding) : deviceKey(finding);
}

/** What a finding is about, in words; `nameOf` names a device. */
export function subjectName({ run, rank, uuid, pid }, nameOf) {
  if (isKnown(run)) return `rank ${rank} of run ${run}`;
  return isKnown(pid) ? `process ${pid} on ${nameOf(uuid)}` : nameOf(uuid);
}

/** What every status has, though one of an older exporter may leave it out. */
const EMPTY = { acks: [], device_pods: [], devices: [], findings: [], processes: [], ranks: [], runs: [], snapshots: [] };

export function viewOf(given) {
  const status = { ...EMPTY, ...given, devices: (given.devices ?? []).map((device) => ({ processes: [], ...device })) };
  const findings = beforeTheEnd(status).sort(worstFirst);
  const bySubject = grouped(findings, subjectKey);
  const about = (key) => bySubject.get(key) ?? [];
  const devices = devicesOf(status, findings).map((device) => judged(device, about(deviceKey(device))));
  const ranks = status.ranks.map((rank) => {
    // What is wrong with its device is wrong for the rank.
    const own = [...about(rankKey(rank)), ...about(deviceKey({ uuid: rank.device }))].sort(worstFirst);
    return judged({ ...rank, pending: pendingRank(rank) }, own);
  });
  const named = status.devices.flatMap(({ uuid, processes }) => processes.map(({ pid, name }) => [processKey({ uuid, pid }), name]));
  const names = new Map(named);
  const processes = status.processes.map((process) => {
    const pending = isKnown(process.creep) ? null : { label: "growth not known yet", hint: "" };
    return judged({ ...process, name: names.get(processKey(process)), pending }, about(processKey(process)));
  });
  const members = grouped(ranks, (rank) => rank.run);
  const runs = status.runs.map((run) => ({ ...run, members: members.get(run.run) ?? [] }));
  const indices = new Map(status.devices.map((device) => [device.uuid, device.index]));
  const indexOf = (uuid) => indices.get(uuid) ?? null;
  return { status, now: status.time, findings, ranks, processes, devices, runs, ...deviceNames(indexOf) };
}

/**
 * The findings, those of ended ranks of a report with the severity that they had: it is info since the end, while the summary tells of
 * the run. What was acknowledged, or became level before the end, is info all the same.
 */
function beforeTheEnd({ findings, ranks, acks }) {
  const ended = new Set(ranks.filter((rank) => rank.end).map(rankKey));
  const acknowledged = new Set(acks.map((ack) => ack.kind + rankKey(ack)));
  return findings.map((finding) => {
    const key = rankKey(finding);
    if (!ended.has(key) || acknowledged.has(finding.kind + key) || isKnown(finding.evidence.level_since_time)) return finding;
    const had = severitiesOf(finding);
    return { ...finding, severity: SEVERITIES.find((severity) => had.includes(severity)) ?? finding.severity };
  });
}

export function grouped(items, key) {
  const groups = new Map();
  for (const item of items) {
    const group = groups.get(key(item));
    if (group) group.push(item);
    else groups.set(key(item), [item]);
  }
  return groups;
}

const judged = (subject, findings) => ({ ...subject, findings, level: levelOf(findings) });

/** Why a rank has no verdict on its growth yet; `null` once it has, and of exporters that do not say. */
function pendingRank({ is_judged: isJudged, judging_from_step: step, end }) {
  if (isJudged !== false) return null;
  if (end) return { label: "too few steps", hint: "" };
  const label = isKnown(step) ? `growth judged from step ${number(step)}` : "not judged yet";
  return { label, hint: "" };
}

/** The ranks whose live memory rises in a straight line, though no finding speaks of it. */
export function straightRises({ ranks }) {
  const rises = (rank) => rank.creep.find((signal) => signal.signal === "allocated" && signal.is_straight);
  return ranks.filter((rank) => rank.findings.length === 0 && rises(rank)).map((rank) => ({ rank, signal: rises(rank) }));
}

/** The devices that answer, and those that only a finding is about: a lost device answers nothing. */
function devicesOf(status, findings) {
  const known = new Set(status.devices.map((device) => device.uuid));
  const silent = new Set(findings.map((finding) => finding.uuid).filter((uuid) => isKnown(uuid) && !known.has(uuid)));
  const unread = [...silent].map((uuid) => ({ uuid, memory: null, processes: [], isUnread: true }));
  return [...unread, ...status.devices];
}

function deviceNames(indexOf) {
  const named = (uuid, name) => (isKnown(indexOf(uuid)) ? `${name} (device ${indexOf(uuid)})` : name);
  return {
    fullName: (uuid) => named(uuid, uuid),
    shortName: (uuid) => named(uuid, shortUuid(uuid)),
    cellName: (uuid) => (isKnown(indexOf(uuid)) ? `${indexOf(uuid)} · ${shortUuid(uuid)}` : shortUuid(uuid)),
  };
}
