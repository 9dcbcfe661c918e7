// The list of findings, the worst first: where, since when, why, and what to do.

import { $, Rows, element, show, text, tone } from "./dom.js";
import { age, date, number } from "./format.js";
import { Capped, mark } from "./parts.js";
import { levelOf } from "./severity.js";
import { subjectKey, subjectName } from "./view.js";

const SHOWN = 6;

export function findingsSection(redraw) {
  const rows = new Rows($("findings-list"), make, update);
  const capped = new Capped(rows, { button: $("findings-more"), limit: SHOWN, noun: "finding", redraw });
  return (view) => {
    text($("findings-count"), number(view.findings.length));
    capped.set(view.findings, (finding) => `${finding.kind} ${subjectKey(finding)}`, view);
    show($("findings"), view.findings.length > 0);
  };
}

function make() {
  const [severity, status, where, sentence, advice] = ["span", "b", "span", "p", "p"].map((name) => element(name));
  advice.className = "advice";
  const badge = element("span", "badge", mark(), severity);
  const time = element("time");
  const words = element("div", "", element("p", "", status, " ", where), sentence, advice);
  return { node: element("li", "", badge, words, time), badge, severity, status, where, sentence, advice, time };
}

function update(row, finding, view) {
  tone(row.badge, levelOf([finding]), "badge");
  text(row.severity, finding.severity);
  text(row.status, finding.status);
  text(row.where, subjectName(finding, view.fullName));
  text(row.sentence, finding.sentence);
  text(row.advice, finding.advice);
  text(row.time, `for ${age(finding.since, view.now)}`, date(finding.since));
}
