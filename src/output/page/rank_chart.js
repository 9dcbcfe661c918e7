// What the chart of a rank shows: its past, where its growth began, what happened, and when its memory runs out.

import { levelColor } from "./chart.js";
import { DASH, bytes, duration, isKnown, most, number, oomEta } from "./format.js";

/** Points of a projection. */
const AHEAD = 12;
/** The end of memory is shown unless it is further away than this many times the past. */
const SHOWN_ETA_RATIO = 4;
/** Growth below this share of the capacity is a flat line on an axis up to the capacity. */
const FLAT_RATIO = 0.05;

/** The finding about growth of a rank's live memory, if there is one. */
export const growthOf = ({ findings }) => findings.find(({ run, evidence }) => isKnown(run) && evidence.signal === "allocated");

/** A rank's chart from its past; `scale` is that of the reader, empty for the one that fits. */
export function rankShown(rank, past, scale) {
  const rows = withTail(rank, withGaps(past));
  const growth = growthOf(rank);
  const ahead = projection(rank, growth, rows);
  const time = [...rows.time, ...ahead.time];
  const blank = ahead.time.map(() => null);
  const before = rows.time.map(() => null);
  const tone = levelColor(growth ? rank.level : 0);
  const line = (label, values, color, more = {}) => ({ label, values: [...values, ...blank], color, isQuiet: !values.some(isKnown), ...more });
  // The projection begins where the line of the peak, or of live memory, ends.
  const from = before.slice(0, -1);
  const projected = (label, values, more = {}) => ({ label, values: [...from, ...values], color: tone, dash: [5, 4], isQuiet: true, ...more });
  const lines = [
    line("Reserved", rows.reserved, "reserved"),
    line("Peak", rows.peak, "peak"),
    line("Live", rows.live, tone, { width: 2.25 }),
    ...(ahead.time.length > 0 ? [projected("lower", ahead.lower, { width: 0 }), projected("upper", ahead.upper, { width: 0 }), projected("Projected peak", ahead.likely, { isQuiet: false })] : []),
  ];
  const bands = ahead.time.length > 0 ? [{ between: [5, 4], tone: "band" }] : [];
  const markers = [...happened(past), ...onset(growth, tone), ...ahead.markers];
  const isFit = (scale || fitting(rank, growth)) === "live";
  return {
    name: described(rank, rows, growth),
    time,
    steps: [...rows.step, ...blank],
    lines,
    bands,
    markers,
    ceiling: isKnown(rank.capacity_bytes) ? { value: rank.capacity_bytes, label: `capacity ${bytes(rank.capacity_bytes)}`, color: "quiet" } : null,
    range: isFit ? around(lines.flatMap(({ values }) => values)) : upTo(rank, lines),
    scale: isFit ? "live" : "capacity",
  };
}

/** The chart of host memory, or of another column of the past, next to a device's memory; `null` where nothing of that is known. */
export function besideShown({ rank, host }, past, column) {
  const { time, [column]: values } = withGaps(past);
  const last = values.findLast(isKnown);
  if (!isKnown(last)) return null;
  const isHost = column === "host";
  const total = isHost ? host?.total_bytes : null;
  const label = isHost ? "Host memory of its process" : "Live blocks";
  return {
    name: `${label}, rank ${rank}: ${(isHost ? bytes : number)(last)}`,
    time,
    lines: [{ label, values, color: "host", width: 2, spans: true }],
    ceiling: isKnown(total) ? { value: total, label: `limit ${bytes(total)}`, color: "quiet" } : null,
    range: around(values),
  };
}

/** The columns of a past, with an empty row in each gap. */
function withGaps(past) {
  const columns = {
    time: past.time,
    step: past.step,
    live: past.allocated_bytes,
    peak: past.peak_allocated_bytes,
    reserved: past.reserved_bytes,
    host: past.host_allocated_bytes,
    blocks: past.live_blocks,
  };
  const rows = Object.fromEntries(Object.keys(columns).map((name) => [name, []]));
  const gaps = new Set(past.gaps);
  past.time.forEach((time, idx) => {
    if (gaps.has(idx)) {
      for (const name of Object.keys(rows)) rows[name].push(name === "time" ? (past.time[idx - 1] + time) / 2 : null);
    }
    for (const [name, values] of Object.entries(columns)) rows[name].push(values[idx]);
  });
  return rows;
}

/** Adds what the status knows since the past was asked for. */
function withTail(rank, rows) {
  if (isKnown(rank.allocated_bytes) && rank.last_push_time > (rows.time.at(-1) ?? 0) + 0.2) {
    const tail = { time: rank.last_push_time, step: rank.step, live: rank.allocated_bytes, peak: rank.peak_allocated_bytes, reserved: rank.reserved_bytes };
    for (const [name, values] of Object.entries(rows)) values.push(tail[name] ?? null);
  }
  return rows;
}

const NO_PROJECTION = { time: [], lower: [], likely: [], upper: [], markers: [] };

/** The way from the last peak, or else live memory, until memory runs out, unless that is too far away to show. */
function projection(rank, growth, { time, peak, live }) {
  const evidence = growth?.evidence ?? {};
  const { headroom_bytes: left, oom_eta_seconds: likely, oom_eta_lower_seconds: soonest, oom_eta_upper_seconds: latest } = evidence;
  const now = time.at(-1);
  const start = peak.findLast(isKnown) ?? live.findLast(isKnown);
  const isOver = rank.end || rank.state === "silent" || isKnown(evidence.level_since_time);
  if (isOver || ![start, left, likely ?? soonest].every(isKnown)) return NO_PROJECTION;
  const eta = likely ?? soonest;
  const past = Math.max(now - time[0], 10);
  const reach = eta <= SHOWN_ETA_RATIO * past ? eta : past;
  const offsets = Array.from({ length: AHEAD + 1 }, (_, idx) => (reach * idx) / AHEAD);
  const course = (until) => offsets.map((offset) => start + left * Math.min(isKnown(until) ? offset / Math.max(until, 1e-3) : 0, 1));
  const out = { time: now + eta, label: `out of memory ${isKnown(likely) ? "about" : "not before"} ${timeOf(now + eta)}`, color: "critical" };
  return {
    // The first point is that at which the past ends.
    time: offsets.slice(1).map((offset) => now + offset),
    lower: course(latest ?? likely),
    likely: course(eta),
    upper: course(soonest ?? likely),
    markers: reach < eta ? [] : [out],
  };
}

const timeOf = (time) => new Date(1000 * time).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });

function onset(growth, color) {
  const { onset_time: time, onset_step: step } = growth?.evidence ?? {};
  if (!isKnown(time)) return [];
  return [{ time, label: isKnown(step) ? `grows since step ${number(step)}` : "grows since here", color, isDashed: true }];
}

/** The markers of what happened; those that come again and again are ticks. */
function happened({ markers }) {
  const named = new Set();
  return markers.map(({ time, kind, status, severity, outcome }) => {
    const words = wordsOf({ kind, status, severity, outcome });
    const tick = { time, words, color: "quiet", isTick: true };
    if (kind === "restart") return { time, label: "restart", color: "text" };
    if (kind === "oom") return { time, label: "out of memory", color: "critical" };
    if (kind === "end") return { time, label: `ended (${outcome})`, color: outcome === "completed" ? "text" : "critical" };
    if (kind !== "raised" || severity === "info" || named.has(status)) return tick;
    named.add(status);
    return { time, label: status, color: severity === "warning" ? severity : "critical" };
  });
}

/** A marker in words. */
export function wordsOf({ kind, status, severity, outcome }) {
  if (kind === "raised") return `${status} (${severity})`;
  if (kind === "cleared") return `${status} cleared`;
  if (kind === "end") return `ended (${outcome})`;
  const words = { eval: "evaluation", oom: "out of memory", train: "takes steps again", sample: "runs without steps", idle: "idle" };
  return words[kind] ?? kind;
}

function fitting(rank, growth) {
  const grown = growth?.evidence.growth_bytes;
  return isKnown(grown) && isKnown(rank.capacity_bytes) && grown < FLAT_RATIO * rank.capacity_bytes ? "live" : "capacity";
}

/** The range around what lines have. */
function around(values) {
  const all = values.filter(isKnown);
  if (all.length === 0) return [0, 1];
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const span = Math.max(high - low, 0.01 * high, 1);
  return [Math.max(low - 0.15 * span, 0), high + 0.15 * span];
}

/** The range from 0 to the capacity, or what the lines have beyond it. */
function upTo(rank, lines) {
  const highest = most(lines.flatMap(({ values }) => values)) ?? 1;
  return [0, 1.06 * Math.max(highest, rank.capacity_bytes ?? 0, 1)];
}

/** The chart in a sentence. */
function described(rank, { time, live }, growth) {
  const values = live.filter(isKnown);
  if (values.length === 0) return `Memory of rank ${rank.rank}: no figures yet`;
  const from = `${bytes(values[0])} to ${bytes(values.at(-1))} in ${duration(Math.max(time.at(-1) - time[0], 0))}`;
  const soon = growth ? oomEta(growth.evidence) : DASH;
  return `Live memory of rank ${rank.rank}: ${from}${soon === DASH ? "" : `; out of memory in ${soon}`}. Arrow keys read points, + and - zoom.`;
}
