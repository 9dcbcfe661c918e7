// The list of findings, the worst first.

import { $, Capped, Rows, element, mark, text, tone } from "./dom.js";
import { LEVELS, number, since, stamp } from "./format.js";
import { subjectKey, subjectWords } from "./subjects.js";

function makeFinding() {
  const [severity, status, where, sentence, advice] = ["span", "b", "span", "p", "p"].map((name) => element(name));
  advice.className = "advice";
  const badge = element("span", "badge", mark(), severity);
  const time = element("time");
  const what = element("div", "", element("p", "", status, where), sentence, advice);
  return { node: element("li", "", badge, what, time), badge, severity, status, where, sentence, advice, time };
}

function updateFinding(row, finding) {
  tone(row.badge, LEVELS[finding.severity], "badge");
  text(row.severity, finding.severity);
  text(row.status, finding.status);
  text(row.where, subjectWords(finding));
  text(row.sentence, finding.sentence);
  text(row.advice, finding.advice);
  text(row.time, `for ${since(finding.since)}`, stamp(finding.since));
}

const rows = new Capped(new Rows($("findings-list"), makeFinding, updateFinding), $("findings-more"), 6, "finding");

export function showFindings(findings) {
  text($("findings-count"), number(findings.length));
  rows.set(findings, (finding) => `${finding.kind} ${subjectKey(finding)}`);
}
