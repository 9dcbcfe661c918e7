// The table of runs: their ranks taken together.

import { $, Rows, show, tableRow, text } from "./dom.js";
import { isKnown, known, least, most, number, oomEta, signed, timeLeft } from "./format.js";
import { Fitted } from "./fit.js";
import { Capped, badges } from "./parts.js";
import { worstFirst } from "./severity.js";
import { grouped } from "./view.js";

const SHOWN = 16;

export function runsSection(redraw) {
  const rows = new Rows($("runs-rows"), make, update);
  const capped = new Capped(rows, { button: $("runs-more"), limit: SHOWN, noun: "run", redraw });
  const fitted = new Fitted($("runs-rows"), redraw);
  return (view) => {
    text($("runs-count"), number(view.runs.length));
    capped.set(view.runs, (run) => run.run, view);
    const shared = view.runs.flatMap(sharedName);
    text($("runs-note"), shared.join(" "));
    show($("runs-note"), shared.length > 0);
    show($("runs"), view.runs.length > 0);
    fitted.fit(`${view.runs.length} ${view.findings.length}`);
  };
}

/** What two programs under one run name mean for this run, in words. */
export function sharedName({ run, challengers, asked_for: name }) {
  const remedy = "Give one of them another name (STEPMEM_RUN).";
  const refused = `Two programs push under the name ${run}; refused lately: ${number(challengers)}. ${remedy}`;
  const renamed = `${run} requested the name ${name}, under which another program pushes. ${remedy}`;
  return [...(challengers > 0 ? [refused] : []), ...(isKnown(name) ? [renamed] : [])];
}

function make() {
  const row = tableRow("name-cell", "num", "num", "num", "num", "found");
  return { ...row, badges: badges(row.cells[5]) };
}

function update(row, run) {
  const [name, ranks, step, imbalance, oom] = row.cells;
  const expected = isKnown(run.ranks_expected) ? ` of ${number(run.ranks_expected)}` : "";
  const steps = run.members.map((rank) => rank.step);
  const [first, newest] = [least(steps), most(steps)];
  text(name, run.run, run.run);
  text(ranks, number(run.members.length) + expected);
  const total = isKnown(run.end_step) ? ` of ${number(run.end_step)}` : "";
  text(step, (first === newest ? known(newest, number) : `${number(first)} to ${number(newest)}`) + total);
  const worst = isKnown(run.worst_rank) ? ` (rank ${run.worst_rank})` : "";
  text(imbalance, known(run.imbalance_ratio, (ratio) => signed(ratio) + worst));
  text(oom, oomEta(run.members.reduce((soonest, rank) => (timeLeft(rank) < timeLeft(soonest) ? rank : soonest), {})));
  const findings = run.members.flatMap((rank) => rank.findings).sort(worstFirst);
  row.badges(counted(findings));
}

/** One finding of each kind, the worst, with how many there are. */
function counted(findings) {
  const kinds = [...grouped(findings, (finding) => finding.kind).values()];
  return kinds.map(([worst, ...others]) => {
    const times = others.length > 0 ? ` × ${number(1 + others.length)}` : "";
    return { ...worst, status: worst.status + times };
  });
}
