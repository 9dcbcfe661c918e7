// The list of findings, the worst first: where, since when, why, and what to do.

import { $, Rows, attribute, element, show, text, tone, words } from "./dom.js";
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
  const [note, frames, fold] = [element("p", "advice"), element("ol", "mono"), element("details")];
  fold.append(element("summary", "", "Where it is allocated"), frames);
  const timeline = element("a", "", "Timeline of its memory snapshot");
  const drawn = element("p", "advice", timeline);
  const body = element("div", "", element("p", "", status, " ", where), sentence, fold, drawn, note, advice);
  const node = element("li", "", badge, body, time);
  return { node, badge, severity, status, where, sentence, advice, time, note, fold, frames, drawn, timeline, shown: "" };
}

function update(row, finding, view) {
  tone(row.badge, levelOf([finding]), "badge");
  text(row.severity, finding.severity);
  text(row.status, finding.status);
  text(row.where, subjectName(finding, view.fullName));
  words(row.sentence, finding.sentence);
  words(row.advice, finding.advice);
  stack(row, finding.evidence.site?.stack ?? []);
  const snapshots = snapshotsOf(finding, view.status.snapshots);
  const id = snapshots.findLast((snapshot) => snapshot.timeline)?.timeline;
  show(row.drawn, Boolean(id));
  // Relative, so that it also works behind a proxy that serves the page below a path.
  if (id) attribute(row.timeline, "href", `snapshots/${encodeURIComponent(id)}`);
  const note = snapshotNote(finding, snapshots.at(-1));
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

/** The snapshots of a rank whose finding speaks of one, the oldest first. */
function snapshotsOf({ run, rank, evidence }, snapshots) {
  const isShown = evidence.signal === "allocated" || evidence.site;
  return isShown ? (snapshots ?? []).filter((of) => of.run === run && of.rank === rank) : [];
}

/** What became of the newest snapshot of a rank that grows, unless the sentence says it. */
function snapshotNote({ evidence }, newest) {
  if (evidence.signal !== "allocated" || !newest) return "";
  const { outcome, error, analysis, analysis_error: reason, path } = newest;
  if (outcome === "waiting") return "A memory snapshot was requested.";
  if (outcome === "recording") return "A memory snapshot is being recorded.";
  if (outcome === "unanswered") return "A memory snapshot was requested, but did not arrive.";
  if (outcome === "failed") return `No memory snapshot: ${error}.`;
  if (!analysis) return `A memory snapshot was written to ${path}; the exporter reads it where --snapshot.read-directory is set and the client reports its place below STEPMEM_SNAPSHOT_DIRECTORY.`;
  if (analysis === "waiting") return "A memory snapshot is being analyzed.";
  return analysis === "analysed" ? "" : `The memory snapshot ${path} was not analyzed (${analysis}): ${reason}.`;
}
