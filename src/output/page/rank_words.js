// What a rank is doing in words, and the link to its story.

import { addressWith } from "./address.js";
import { duration, known } from "./format.js";

export const rankLink = ({ run, rank }) => addressWith({ run, rank });

/** That a rank ended or is silent, as a badge; its finding may be of before. */
export function activity(rank) {
  if (rank.end) return { label: `ended (${rank.end.outcome})`, hint: "", icon: rank.end.outcome === "completed" ? "ended" : "failed" };
  if (rank.state !== "silent") return null;
  return { label: `silent for ${known(rank.silent_seconds, duration)}`, hint: "It has not ended, and pushes nothing", icon: "silent" };
}
