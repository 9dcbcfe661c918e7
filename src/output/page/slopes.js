// The growth of one signal in words: an arrow, a figure, and the rest on hover.

import { element, hint, text, tone } from "./dom.js";
import { DASH, bytes, date, isKnown, known, nounOf, number, percent } from "./format.js";

/** Adds to `cell` an arrow and a figure of a signal; `main` is the signal shown, `all` are on hover. */
export function slopeCell(cell) {
  const [arrow, figure] = ["arrow", ""].map((className) => cell.appendChild(element("span", className)));
  return (main, words, all) => {
    const direction = main ? directionOf(main) : "";
    text(arrow, direction);
    text(figure, main ? words : DASH);
    tone(figure, null, direction === "→" ? "quiet" : "");
    hint(cell, all.map(inFull).join("\n"));
  };
}

export const perStep = ({ slope_bytes_per_step: slope }) => known(slope, bytes);
/** Of a rank that counts calls, a thousand of them: one is short. */
export const perUnit = (signal, of) => (nounOf(of) === "call" ? `${known(signal.slope_bytes_per_step, (value) => bytes(1000 * value))} per 1,000 calls` : `${perStep(signal)} per ${nounOf(of)}`);
export const perHour = ({ slope_bytes_per_second: slope }) => known(slope, (value) => bytes(3600 * value));

function directionOf(signal) {
  if (signal.trend || signal.slope_lower_bytes_per_step > 0) return "↗";
  return signal.slope_upper_bytes_per_step < 0 ? "↘" : "→";
}

function inFull(signal) {
  const words = `${signal.signal.replaceAll("_", " ")}: ${rate(signal)}`;
  if (!signal.trend) return words;
  const { growth_bytes: growth, onset_step: step, onset_time: time, confidence_ratio: confidence } = signal.trend;
  const onset = isKnown(step) ? `${nounOf(signal)} ${number(Math.round(step))}` : date(time);
  return `${words}, ${bytes(growth)} since ${onset}, confidence ${percent(confidence)}`;
}

// An unmanaged process has no steps.
function rate(signal) {
  if (!isKnown(signal.slope_bytes_per_step)) return `${perHour(signal)} per hour`;
  if (nounOf(signal) === "call") return `${perUnit(signal, signal)}, ${perHour(signal)} per hour`;
  const lower = bytes(signal.slope_lower_bytes_per_step);
  const upper = bytes(signal.slope_upper_bytes_per_step);
  return `${perStep(signal)} per step (95% interval ${lower} to ${upper})`;
}
