// The headline: the worst finding, or that there is none.

import { LEVELS, number, plural } from "./format.js";
import { briefly, subjectWords } from "./subjects.js";

/** Who is watched: ranks that push, and processes that do not. */
function watched({ ranks, runs, processes = [] }) {
  const pushing = `${plural(ranks.length, "rank")} of ${plural(runs.length, "run")} ${ranks.length === 1 ? "pushes" : "push"}`;
  const n = processes.length;
  const silent = `${plural(n, "process")} ${n === 1 ? "does" : "do"} not push`;
  return [ranks.length > 0 ? pushing : "", n > 0 ? silent : ""].filter(Boolean).join(", ");
}

/** The verdict's level, its headline, the line below it, and what a screen reader is told once. */
export function judge(status, findings) {
  const { ranks, processes = [] } = status;
  const who = watched(status);
  if (findings.length === 0) return withoutFinding(ranks, processes, who);
  const [worst] = findings;
  const headline = `${worst.status} on ${subjectWords(worst)}`;
  const tally = ["critical", "warning", "info"]
    .map((severity) => [findings.filter((finding) => finding.severity === severity).length, severity])
    .filter(([n]) => n > 0)
    .map(([n, severity]) => `${number(n)} ${severity}`);
  const more = `${plural(findings.length, "finding")} (${tally.join(", ")})${who ? `; ${who}` : ""}.`;
  return [LEVELS[worst.severity], `${headline}: ${briefly(worst)}`, more, `${worst.severity}: ${headline}`];
}

function withoutFinding(ranks, processes, who) {
  if (ranks.length + processes.length === 0) return [null, "No rank pushes yet", "", "No rank pushes yet"];
  const young = ranks.filter((rank) => rank.is_judged === false);
  if (young.length === 0) return [0, `Nothing is wrong: ${who}, no finding`, "", "Nothing is wrong"];
  const from = young.map((rank) => rank.judging_from_step).filter(Number.isFinite);
  const step = from.length > 0 ? `, the last from step ${number(Math.max(...from))} on` : "";
  const more = `${number(young.length)} of ${plural(ranks.length, "rank")} not judged for creep yet${step}.`;
  return [null, `No finding so far: ${who}`, more, "No finding so far"];
}
