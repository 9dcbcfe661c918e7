// How bad findings are. Nothing here knows a diagnosis by name: a finding brings its severity, and its evidence names
// the figures that it speaks of.

import { isKnown, timeLeft } from "./format.js";

/** The severities, the worst first. */
export const SEVERITIES = ["critical", "warning", "info"];
/** The level of a subject that has no finding because it is not judged yet. */
export const PENDING = "pending";

// A severity that this page does not know is shown as the worst.
const LEVELS = new Map([...SEVERITIES].reverse().map((severity, idx) => [severity, idx + 1]));
const level = ({ severity }) => LEVELS.get(severity) ?? LEVELS.size;

/** The level of the worst finding, 1 to 3; 0 without one. */
export const levelOf = (findings) => findings.reduce((worst, finding) => Math.max(worst, level(finding)), 0);

/** The level of the worst finding whose evidence holds for `isOf`. */
export const levelWhere = (findings, isOf) => levelOf(findings.filter(({ evidence }) => isOf(evidence)));

/** The level of the findings about when memory runs out. */
export const levelOfOom = (findings) => levelWhere(findings, (evidence) => timeLeft(evidence) < Infinity);

/** Orders findings: the worst first, of those a device's, then what is soonest out of memory. */
export function worstFirst(a, b) {
  const soon = ({ evidence }) => timeLeft(evidence);
  const ofDevice = (finding) => Number(!isKnown(finding.run) && !isKnown(finding.pid));
  const order = level(b) - level(a) || ofDevice(b) - ofDevice(a);
  return order || (soon(a) < soon(b) ? -1 : Number(soon(a) > soon(b)));
}
