// The runs, each by all of its ranks.

import { $, Capped, Rows, badges, tableRow, text } from "./dom.js";
import { eta, grouped, isKnown, known, least, most, number, signed } from "./format.js";
import { soonerFirst } from "./subjects.js";

function makeRun() {
  const row = tableRow("name-cell", "num", "num", "num", "num", "found");
  return { ...row, badges: badges(row.cells[5]) };
}

function updateRun({ cells, badges: list }, run) {
  const [name, ranks, step, imbalance, oom] = cells;
  const expected = isKnown(run.ranks_expected) ? ` of ${number(run.ranks_expected)}` : "";
  const steps = run.members.map((rank) => rank.step);
  const [first, newest] = [least(steps), most(steps)];
  text(name, run.run, run.run);
  text(ranks, number(run.ranks) + expected);
  text(step, first === newest ? known(newest, number) : `${number(first)} to ${number(newest)}`);
  const whose = isKnown(run.worst_rank) ? ` (rank ${run.worst_rank})` : "";
  text(imbalance, known(run.imbalance_ratio, (ratio) => signed(ratio) + whose));
  const soonest = (name) => least(run.members.map((rank) => rank[name]));
  text(oom, eta({ oom_eta_seconds: soonest("oom_eta_seconds"), oom_eta_steps: soonest("oom_eta_steps") }));
  const kinds = grouped(run.findings.sort(soonerFirst), (finding) => finding.kind);
  const counted = [...kinds.values()].map(([first, ...others]) => {
    const times = others.length > 0 ? ` × ${number(1 + others.length)}` : "";
    return { ...first, status: first.status + times };
  });
  list.set(counted, (finding) => finding.kind);
}

const rows = new Capped(new Rows($("runs-rows"), makeRun, updateRun), $("runs-more"), 16, "run");

export function showRuns(runs) {
  text($("runs-count"), number(runs.length));
  rows.set(runs, (run) => run.run);
}
