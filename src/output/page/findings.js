// The list of findings, the worst first: where, since when, why, and what to do.

import { acknowledge, actionButton } from "./actions.js";
import { $, Rows, attribute, element, show, text, tone, words } from "./dom.js";
import { age, date, number } from "./format.js";
import { Capped, mark } from "./parts.js";
import { levelOf } from "./severity.js";
import { snapshotNote, snapshotsOf, timelineOf } from "./snapshots.js";
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
  const [note, frames, fold] = [element("p", "advice"), element("ol", "mono"), element("details")];
  fold.append(element("summary", "", "Where it is allocated"), frames);
  const timeline = element("a", "", "Timeline of its memory snapshot");
  const drawn = element("p", "advice", timeline);
  const body = element("div", "", element("p", "", status, " ", where), sentence, fold, drawn, note, advice);
  const row = {};
  const button = actionButton("Acknowledge…", () => acknowledge(row.finding, row.view));
  if (button) body.append(button);
  const node = element("li", "", badge, body, time);
  return Object.assign(row, { node, button, badge, severity, status, where, sentence, advice, time, note, fold, frames, drawn, timeline, shown: "" });
}

function update(row, finding, view) {
  Object.assign(row, { finding, view });
  if (row.button) show(row.button, levelOf([finding]) > 1);
  tone(row.badge, levelOf([finding]), "badge");
  text(row.severity, finding.severity);
  text(row.status, finding.status);
  text(row.where, subjectName(finding, view.fullName));
  words(row.sentence, finding.sentence);
  words(row.advice, finding.advice);
  stack(row, finding.evidence.site?.stack ?? []);
  const snapshots = finding.evidence.signal === "allocated" || finding.evidence.site ? view.status.snapshots : [];
  const path = timelineOf(finding, snapshots);
  show(row.drawn, Boolean(path));
  if (path) attribute(row.timeline, "href", path);
  const note = snapshotNote(finding, snapshotsOf(finding, snapshots).at(-1));
  text(row.note, note);
  show(row.note, note !== "");
  text(row.time, `for ${age(finding.since, view.now)}`, date(finding.since));
}

/** The user's frames from the line that allocates outwards. */
function stack(row, frames) {
  const lines = frames.map(({ file, line, function: name }) => `${file}:${line} in ${name}`);
  show(row.fold, lines.length > 0);
  if (row.shown === lines.join("\n")) return;
  row.shown = lines.join("\n");
  row.frames.replaceChildren(...lines.map((line) => element("li", "", line)));
}
