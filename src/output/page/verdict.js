// The verdict: one headline about everything, the worst finding first.

import { clientCommand, pushExample } from "./commands.js";
import { $, show, text, tone, words } from "./dom.js";
import { place } from "./facts.js";
import { isKnown, most, number, plural } from "./format.js";
import { PENDING, SEVERITIES, levelOf } from "./severity.js";
import { perUnit } from "./slopes.js";
import { straightRises, subjectName } from "./view.js";

export function verdictSection() {
  text($("client"), clientCommand());
  text($("curl"), pushExample());
  return (view) => {
    const { level, headline, more, said } = verdictOf(view);
    tone($("verdict"), level, "verdict");
    words($("verdict-text"), headline);
    text($("verdict-more"), more);
    show($("verdict-more"), more !== "");
    show($("push-example"), view.ranks.length === 0);
    show($("verdict"), true);
    return said;
  };
}

/** The title of the window: the worst finding, from info on. */
export function titleOf({ findings }) {
  return findings.length > 0 ? `${findings[0].severity}: ${findings[0].status} · stepmem` : "stepmem";
}

/** The level, the headline, the line below it, and what a screen reader announces once. */
function verdictOf(view) {
  const watched = [...view.ranks, ...view.processes];
  if (view.findings.length > 0) return worst(view);
  if (watched.length === 0) return { level: null, headline: { strong: "No rank pushes yet" }, more: "", said: "No rank pushes yet" };
  // Processes come and go: one whose growth is not known yet does not hold up the verdict on the others.
  const isPending = view.ranks.some((rank) => rank.pending) || watched.every((subject) => subject.pending);
  if (isPending) return pending(view, watched);
  const [first, ...others] = straightRises(view);
  if (first) return rising(view, first, others.length);
  return { level: 0, headline: [{ strong: "Nothing is wrong" }, `: ${who(view)}, no finding`], more: "", said: "Nothing is wrong" };
}

function worst(view) {
  const { findings } = view;
  const [first] = findings;
  const subject = subjectName(first, view.shortName);
  const tally = SEVERITIES.map((severity) => [findings.filter((finding) => finding.severity === severity).length, severity])
    .filter(([n]) => n > 0)
    .map(([n, severity]) => `${number(n)} ${severity}`);
  const counted = `${plural(findings.length, "finding")} (${tally.join(", ")})`;
  return {
    level: levelOf(findings),
    headline: [{ strong: `${first.status} on ${subject}` }, ": ", ...stressed(briefly(first))],
    more: `${[counted, who(view)].filter(Boolean).join("; ")}.`,
    said: `${first.severity}: ${first.status} on ${subject}`,
  };
}

/** What rises in a straight line is not called wrong yet, and not right either. */
function rising(view, { rank, signal }, nOthers) {
  const also = nOthers > 0 ? `, and that of ${plural(nOthers, "other rank")}` : "";
  const more = `Live memory of ${subjectName(rank, view.shortName)}${also} rises in a straight line, by ${perUnit(signal, rank)}: compare with a known stable run.`;
  return { level: PENDING, headline: [{ strong: "No finding so far" }, `: ${who(view)}`], more, said: "No finding so far" };
}

function pending(view, watched) {
  const nPending = watched.filter((subject) => subject.pending && !subject.end).length;
  const nOver = watched.filter((subject) => subject.pending && subject.end).length;
  const over = nOver > 0 ? `${number(nOver)} of ${number(watched.length)} ended too soon to be judged for growth.` : "";
  const step = most(view.ranks.map((rank) => rank.judging_from_step));
  const from = isKnown(step) ? `; ${nPending === 1 ? "it" : "the last one"} will be from step ${number(step)}` : "";
  const young = `${number(nPending)} of ${number(watched.length)} ${nPending === 1 ? "is" : "are"} not judged for growth yet${from}.`;
  const more = [nPending > 0 || nOver === 0 ? young : "", over].filter(Boolean).join(" ");
  return { level: PENDING, headline: [{ strong: "No finding so far" }, `: ${who(view)}`], more, said: "No finding so far" };
}

function who({ ranks, processes }) {
  const pushing = ranks.filter((rank) => rank.state !== "ended" && rank.state !== "silent");
  const nRuns = new Set(pushing.map((rank) => rank.run)).size;
  const [nPushing, nProcesses] = [pushing.length, processes.length];
  const [nSilent, nEnded] = ["silent", "ended"].map((state) => ranks.filter((rank) => rank.state === state).length);
  return [
    [nPushing, `${plural(nPushing, "rank")} of ${plural(nRuns, "run")} ${nPushing === 1 ? "is" : "are"} pushing`],
    [nSilent, `${plural(nSilent, "rank")} ${nSilent === 1 ? "is" : "are"} silent`],
    [nEnded, `${plural(nEnded, "rank")} ended`],
    [nProcesses, plural(nProcesses, "unmanaged process")],
  ].filter(([n]) => n > 0).map(([, words]) => words).join(", ");
}

/** The sentence of a growth down to how fast, by what and until when; any other as it is. */
function briefly({ evidence, sentence }) {
  if (!evidence.signal) return sentence;
  const end = sentence.match(/out of memory in [^(]+/)?.[0].trim();
  const cause = causeOf(evidence, sentence);
  return sentence.split(/[,;]/)[0] + (cause ? `, ${cause}` : "") + (end ? `; ${end}` : "");
}

/** What allocates the growth, else what holds it. */
function causeOf({ holder }, sentence) {
  const line = sentence.split("; ").find((clause) => clause.includes(" of it is allocated at "));
  if (line) return line;
  if (holder) return `held by ${holder.name}${holder.at ? ` of ${place(holder.at)}` : ""}`;
  return sentence.match(/allocated at [^;(]+/)?.[0].trim();
}

/** A sentence in parts, of which those are strong that follow these words, down to the end of the clause. */
function stressed(sentence) {
  const [first, ...rest] = sentence.split(/((?: by|allocated at|held by|out of memory in(?: about)?) )/);
  return [first, ...rest.flatMap((part, idx) => (idx % 2 === 0 ? part : strongClause(part)))];
}

function strongClause(part) {
  const strong = part.match(/^[^,;]*/)[0];
  return [{ strong }, part.slice(strong.length)];
}
