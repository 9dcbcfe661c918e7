// The story of a rank in facts: how it grows, why it is judged so, what allocates and holds it, how it ended.

import { bytes, date, duration, isKnown, known, nounOf, number, oomEta, percent, plural, DASH } from "./format.js";
import { growthOf, wordsOf } from "./rank_chart.js";
import { summaryPath } from "./past.js";
import { recorded, when } from "./recorded.js";
import { snapshotsOf, timelineOf } from "./snapshots.js";
import { sharedName } from "./runs.js";
import { perHour, perUnit } from "./slopes.js";

/** Facts as `{ term, sentence, lines, link, gauge }`; the sentence is as `words` takes it. `tests` are the rank's windows. */
export function factsOf(rank, tests, view) {
  const growth = growthOf(rank)?.evidence;
  const site = growth?.site ?? rank.site;
  const holder = growth?.holder ?? rank.holder;
  const isOver = Boolean(rank.end) || rank.state === "silent";
  const run = view.runs.find((of) => of.run === rank.run);
  const facts = [
    rank.end && { term: "End", sentence: ending(rank.end, view.now, nounOf(rank)) },
    rank.state === "silent" && { term: "Silent", sentence: `for ${known(rank.silent_seconds, duration)}; its process has not said that it ended` },
    { term: "Growth", sentence: growing(rank, growth, view.now) },
    rank.kept_blocks && { term: "Live blocks", sentence: rank.kept_blocks_sentence },
    growth && !isOver && !isKnown(growth.level_since_time) && { term: "Out of memory", sentence: outOfMemory(growth) },
    run && ends(run, view.now) && { term: "Run ends", sentence: ends(run, view.now) },
    site && { term: "Allocated at", ...allocated(site) },
    holder && { term: "Held by", ...held(holder, rank) },
    (!rank.end || rank.pending) && { term: "Why", sentence: judged(rank, tests?.windows) },
    ...others(rank).map(({ status, sentence, severity }) => ({ term: status, sentence, note: severity })),
    rank.host?.sentence && { term: "Host memory", sentence: rank.host.sentence },
    processMemory(rank),
    snapshot(rank, view),
    acknowledged(rank, view),
    ...(run ? sharedName(run).map((sentence) => ({ term: "Name", sentence })) : []),
    !recorded && { term: "Run", sentence: "", link: { words: `Summary of ${rank.run}`, path: summaryPath(rank.run) } },
  ];
  return facts.filter(Boolean);
}

function ending({ outcome, step, time, error_type: type, error_message: message }, now, noun) {
  const at = isKnown(step) ? ` at ${noun} ${number(step)}` : "";
  const since = isKnown(time) ? `, ${when(time, now)}` : "";
  const why = [type, message].filter(Boolean).join(": ");
  return [{ strong: `${outcome}${at}` }, `${since}${why ? `; ${why}` : ""}`];
}

/** When a run ends that names its last step, or has a deadline; empty where neither is known. */
function ends({ end_step: step, end_time: time }, now) {
  const at = isKnown(step) ? `at step ${number(step)}` : "";
  return [at, isKnown(time) ? `in ${duration(Math.max(time - now, 0))}` : ""].filter(Boolean).join(", ");
}

function growing(rank, growth, now) {
  if (!growth) {
    const own = rank.creep.find(({ signal }) => signal === "allocated");
    return own ? `none found; now ${perUnit(own, rank)}` : "not known yet";
  }
  const { growth_bytes: grown, onset_step: step, onset_time: time, level_since_step: levelStep, level_since_time: levelTime } = growth;
  const began = isKnown(step) ? `${nounOf(rank)} ${number(step)}` : known(time, date);
  const since = isKnown(grown) ? `${bytes(grown)} since ${began}` : `since ${began}`;
  if (isKnown(levelTime)) return `${since}; level since ${isKnown(levelStep) ? `${nounOf(rank)} ${number(levelStep)}, ` : ""}${when(levelTime, now)}${growth.is_full ? ", where memory is full" : ""}`;
  const [strong, interval] = rate(growth);
  return [{ strong }, `${interval}; ${since}${isKnown(time) ? `, ${when(time, now)}` : ""}`];
}

const UNKNOWN = {
  foreign_pid_namespace: "NVML does not list it by its own process id",
  memory_hidden: "NVML lists it without its memory",
  unsupported: "NVML is missing, or gives no usable list",
  no_answer: "NVML does not answer",
};

function processMemory({ process_used_state: state, process_estimated_bytes: estimated }) {
  if (!state || isKnown(estimated)) return null;
  return { term: "Process memory", sentence: `unknown: ${UNKNOWN[state] ?? state}` };
}

/** A rate, and its interval. */
function rate(growth) {
  const { slope_lower_bytes_per_step: lower, slope_upper_bytes_per_step: upper } = growth;
  if (!isKnown(growth.slope_bytes_per_step)) return [isKnown(growth.slope_bytes_per_second) ? `${perHour(growth)} per hour` : "at an unknown rate", ""];
  if (nounOf(growth) === "call") return [perUnit(growth, growth), `, ${perHour(growth)} per hour`];
  return [perUnit(growth, growth), isKnown(lower) && isKnown(upper) ? ` (${bytes(lower)} to ${bytes(upper)})` : ""];
}

function outOfMemory(growth) {
  const { oom_eta_lower_seconds: lower, oom_eta_upper_seconds: upper, headroom_bytes: left } = growth;
  const eta = oomEta(growth);
  const rest = isKnown(left) ? `; ${bytes(left)} left` : "";
  if (eta === DASH) return `not known within a factor of three${rest}`;
  const interval = isKnown(lower) && isKnown(upper) ? ` (${duration(lower)} to ${duration(upper)})` : "";
  return [{ strong: eta.startsWith("≥") ? eta : `in about ${eta}` }, interval + rest];
}

/** Why growth of live memory is found or not: the test that stopped its longest window. */
function judged(rank, windows = []) {
  if (rank.pending && !rank.end) {
    const n = rank.judging_from_step - rank.step;
    return n > 0 ? `not judged yet: ${plural(n, `more ${nounOf(rank)}`)}` : "not judged yet";
  }
  if (rank.pending) return `it ended before there were enough ${nounOf(rank)}s to judge`;
  const own = windows.filter(({ signal, test }) => signal === "allocated" && test !== "too short");
  const longest = (outcome) => own.filter((of) => of.outcome === outcome).sort((a, b) => b.records - a.records)[0];
  const [creeps, rises, stopped] = ["creeps", "rises", "stopped"].map(longest);
  if (creeps) return `no innocent cause fits ${steps(creeps, rank)}`;
  if (rises) return `rises over ${steps(rises, rank)}, not paged: ${rises.reason} (test “${rises.test}”)`;
  if (stopped) return `no growth over ${steps(stopped, rank)}: ${stopped.reason} (test “${stopped.test}”)`;
  if (windows.length > 0) return `too few ${nounOf(rank)}s for a window`;
  return recorded ? "not in this file" : "…";
}

const steps = ({ records, first_step: first, last_step: last }, rank) =>
  isKnown(first) && isKnown(last) ? `${nounOf(rank)}s ${number(first)} to ${number(last)}` : plural(records, "record");

/** A place in the code, by the file and its folder, as sentences have it. */
export const place = (frame) => inFull({ ...frame, file: frame.file?.split(/[/\\](?:\.\/)*/).slice(-2).join("/") });

const inFull = ({ file, line, function: name }) => `${file}${isKnown(line) ? `:${line}` : ""}${name ? ` in ${name}` : ""}`;

function allocated({ at, share_ratio: share, stack = [] }) {
  const part = isKnown(share) ? ` (${percent(share)} of the growth)` : "";
  return { sentence: at ? [{ strong: `\`${place(at)}\`` }, part] : "no line of it is known", lines: stack.map(inFull) };
}

function held({ name, kind, at, bytes: size, bytes_per_step: slope, fill, step }, rank) {
  const where = at ? ` of \`${place(at)}\`` : "";
  const sentence = [{ strong: name }, ` (${kind})${where}: `, { strong: known(size, bytes) }, `${isKnown(step) ? ` at step ${number(step)}` : ""}, ${perUnit({ slope_bytes_per_step: slope }, rank).replace(" per ", " more per ")}`];
  if (!fill) return { sentence };
  const { items, items_max: most, items_per_step: pace } = fill;
  const until = pace > 0 && most > items ? `; full in about ${plural(Math.ceil((most - items) / pace), nounOf(rank))}` : "";
  return { sentence: [...sentence, `; bounded${until}`], gauge: { ratio: items / most, words: `${number(items)} of ${number(most)}` } };
}

const others = (rank) => {
  const growth = growthOf(rank);
  return rank.findings.filter((finding) => finding !== growth);
};

function snapshot(rank, { status }) {
  const [newest, timeline] = [snapshotsOf(rank, status.snapshots).at(-1), timelineOf(rank, status.snapshots)];
  if (!newest) return null;
  const step = isKnown(newest.step) ? ` at step ${number(newest.step)}` : "";
  const sentence = `${newest.outcome}${step}${newest.verdict ? `; found: ${newest.verdict}` : ""}`;
  return { term: "Snapshot", sentence, link: timeline && { words: "Timeline", path: timeline } };
}

function acknowledged({ run, rank }, { status, now }) {
  const own = status.acks.filter((ack) => ack.run === run && ack.rank === rank);
  if (own.length === 0) return null;
  return { term: "Acknowledged", sentence: own.map(({ kind, reason, until }) => `${kind}: ${reason} (for ${duration(Math.max(until - now, 0))} more)`).join("; ") };
}

/** The last things that happened to a rank, the newest first. */
export function eventsOf({ markers, markers_dropped: dropped }, shown) {
  const lines = markers.slice(-shown).reverse().map(({ time, step, ...marker }) => ({ time, words: `${isKnown(step) ? `step ${number(step)}: ` : ""}${wordsOf(marker)}` }));
  const more = markers.length - lines.length + dropped;
  return { lines, more: more > 0 ? `and ${number(more)} before` : "" };
}
