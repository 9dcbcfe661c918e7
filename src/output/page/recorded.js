// What a report of a run has instead of an exporter: a status and the past, in the document itself.

import { ago, date, isKnown } from "./format.js";

const node = document.getElementById("recorded");

/** `null` in the page of an exporter. */
export const recorded = node && JSON.parse(node.textContent);

/** When something was: how long ago, or in a report, which is read later, the time. */
export const when = (time, now) => (recorded ? `at ${momentOf(time, now)}` : ago(time, now));

function momentOf(time, now) {
  const [then, last] = [time, now].map((unix) => new Date(1000 * unix));
  return then.toDateString() === last.toDateString() ? then.toLocaleTimeString([], { hour12: false }) : date(time);
}

/** The severities that a finding of a rank in a report had; its last one is info once the rank ended. */
export function severitiesOf({ run, rank, status }) {
  const past = recorded && isKnown(run) ? recorded.answers[`ranks/${rank}/history`] : null;
  const raised = (past?.markers ?? []).filter((marker) => marker.kind === "raised" && marker.status === status);
  return raised.map(({ severity }) => severity);
}
