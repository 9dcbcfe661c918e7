// How fast a signal grows, as an arrow, as a figure and in words.

import { bytes, isKnown, known, number, percent, stamp } from "./format.js";

export function arrow(slope) {
  if (slope.trend || slope.slope_lower_bytes_per_step > 0) return "↗";
  return slope.slope_upper_bytes_per_step < 0 ? "↘" : "→";
}

// A process that does not push has no steps.
export function slopeText({ slope_bytes_per_step: step, slope_bytes_per_second: second }) {
  return isKnown(step) ? bytes(step) : known(second, (slope) => `${bytes(3600 * slope)}/h`);
}

export function slopeWords(slope) {
  const lower = bytes(slope.slope_lower_bytes_per_step);
  const upper = bytes(slope.slope_upper_bytes_per_step);
  const perStep = isKnown(slope.slope_bytes_per_step) ? ` per step (95% interval ${lower} to ${upper})` : "";
  const words = `${slope.signal}: ${slopeText(slope)}${perStep}`;
  if (!slope.trend) return words;
  const { growth_bytes: growth, onset_step: step, onset_time: time, confidence_ratio: confidence } = slope.trend;
  const onset = isKnown(step) ? `step ${number(Math.round(step))}` : stamp(time);
  return `${words}, ${bytes(growth)} since ${onset}, confidence ${percent(confidence)}`;
}
