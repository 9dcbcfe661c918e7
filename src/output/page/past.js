// Answers of the exporter about the past, read again while the page shows them; or those of a report.

import { recorded } from "./recorded.js";

const KEPT_MAX = 12;
const ANSWER_WITHIN_MS = 5000;

// By path, that asked for last at the end.
const answers = new Map();

const ofRun = (run) => `api/v1/runs/${encodeURIComponent(run)}`;
export const runPath = (run) => `${ofRun(run)}/history`;
export const rankPath = ({ run, rank }) => `${ofRun(run)}/ranks/${rank}/history`;
export const windowsPath = ({ run, rank }) => `${ofRun(run)}/ranks/${rank}/windows?format=json`;
export const summaryPath = (run) => `${ofRun(run)}/summary?format=text`;

/**
 * The last answer at a path, `null` before there is one. It is asked for again once it is `everyMs` old; `arrived` is called
 * with a new one.
 */
export function asked(path, everyMs, arrived) {
  // A report is of one run, whose name it leaves out: "history", "ranks/3/history", "ranks/3/windows".
  if (recorded) return recorded.answers[path.split("?")[0].split("/").slice(4).join("/")] ?? null;
  const entry = answers.get(path) ?? { value: null, at: -Infinity, isAsked: false };
  answers.delete(path);
  answers.set(path, entry);
  if (answers.size > KEPT_MAX) answers.delete(answers.keys().next().value);
  if (!entry.isAsked && performance.now() - entry.at >= everyMs) ask(path, entry, arrived);
  return entry.value;
}

async function ask(path, entry, arrived) {
  entry.isAsked = true;
  try {
    const response = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_WITHIN_MS) });
    if (response.ok) entry.value = await response.json();
    else if (response.status === 404) entry.value = null;
  } catch {
    // The status is asked for more often, and the page says when it stays out.
  }
  Object.assign(entry, { at: performance.now(), isAsked: false });
  arrived();
}
