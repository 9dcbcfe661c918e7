// The memory snapshots of a rank: what became of the newest one, and its timeline.

import { recorded } from "./recorded.js";

/** The snapshots of a rank, the oldest first. */
export const snapshotsOf = ({ run, rank }, snapshots) => snapshots.filter((of) => of.run === run && of.rank === rank);

/** Where the newest drawn timeline of a rank is; relative, so that it also works behind a proxy that serves the page below a path. */
export function timelineOf(rank, snapshots) {
  if (recorded) return null;
  const id = snapshotsOf(rank, snapshots).findLast(({ timeline }) => timeline)?.timeline;
  return id ? `snapshots/${encodeURIComponent(id)}` : null;
}

/** What became of the newest snapshot of a rank that grows, unless the sentence of its finding says it. */
export function snapshotNote({ evidence }, newest) {
  if (evidence.signal !== "allocated" || !newest) return "";
  const { outcome, error, analysis, analysis_error: reason, path } = newest;
  if (outcome === "waiting") return "A memory snapshot was requested.";
  if (outcome === "recording") return "A memory snapshot is being recorded.";
  if (outcome === "unanswered") return "A memory snapshot was requested, but did not arrive.";
  if (outcome === "failed") return `No memory snapshot: ${error}.`;
  if (!analysis) return `A memory snapshot was written to ${path}; only those below --snapshot.read-directory are read.`;
  if (analysis === "waiting") return "A memory snapshot is being analyzed.";
  return analysis === "analysed" ? "" : `The memory snapshot ${path} was not analyzed (${analysis}): ${reason}.`;
}
