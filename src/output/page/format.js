// Figures in words. The same figure always gives the same words.

export const DASH = "–";

const NUMBER = new Intl.NumberFormat("en");
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export const isKnown = (value) => value !== null && value !== undefined;
export const known = (value, format) => (isKnown(value) ? format(value) : DASH);
export const number = (value) => NUMBER.format(value);
export const plural = (n, noun) => `${number(n)} ${noun}${n === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;
export const percent = (ratio) => minus(`${Math.round(100 * ratio) || 0}%`);
export const signed = (ratio) => (Math.round(100 * ratio) > 0 ? "+" : "") + percent(ratio);
export const milliseconds = (seconds) => `${(1000 * seconds).toFixed(2)} ms`;
export const date = (unix, options) => new Date(1000 * unix).toLocaleString("sv", options);
export const age = (unix, now) => duration(Math.max(now - unix, 0));
export const ago = (unix, now) => (now - unix < 1 ? "now" : `${age(unix, now)} ago`);

const minus = (text) => text.replace("-", "\u2212");

export function bytes(value) {
  if (Math.abs(value) < 0.5) return "0 B";
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < BYTE_UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const size = Math.abs(value);
  const digits = unit === 0 || size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return `${minus(value.toFixed(digits))} ${BYTE_UNITS[unit]}`;
}

/** A duration in its two largest units, the smaller one rounded down, as the terminal has it. */
export function duration(seconds) {
  const minutes = Math.floor(seconds / 60);
  const hours = Math.floor(minutes / 60);
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  if (hours < 24) return `${hours} h ${minutes % 60} min`;
  return `${number(Math.floor(hours / 24))} d ${hours % 24} h`;
}

/** What a rank counts, or a figure of it is in. */
export const nounOf = ({ unit }) => ({ calls: "call", replays: "replay" })[unit] ?? "step";

/** What orders by the time to out-of-memory, or by the least where it is not known. */
export const timeLeft = (of) =>
  of.oom_eta_seconds ?? of.oom_eta_lower_seconds ?? of.oom_eta_steps ?? of.oom_eta_lower_steps ?? Infinity;

/** The time to out-of-memory, or the least where it is not known; in steps where the time of a step is unknown. */
export function oomEta(of) {
  const { oom_eta_seconds: seconds, oom_eta_steps: steps, oom_eta_lower_seconds: least } = of;
  if (isKnown(seconds)) return seconds < 1 ? "< 1 s" : duration(seconds);
  if (isKnown(steps)) return plural(Math.round(steps), nounOf(of));
  if (isKnown(least)) return least < 1 ? DASH : `≥ ${duration(least)}`;
  return known(of.oom_eta_lower_steps, (value) => `≥ ${plural(Math.round(value), nounOf(of))}`);
}

/** The UUID of a device down to its first group of digits. */
export const shortUuid = (uuid) => uuid.match(/^(.+?-[0-9a-f]{8})-/i)?.[1] ?? uuid;

/** Labels with their counts: the first always, the others from 1 on. */
export function counts(pairs) {
  const shown = pairs.filter(([, n], idx) => idx === 0 || n > 0);
  return shown.map(([label, n]) => `${number(n)} ${label.replaceAll("_", " ")}`).join(", ") || DASH;
}

export const most = (values) => values.filter(isKnown).reduce((a, b) => (a > b ? a : b), null);
export const least = (values) => values.filter(isKnown).reduce((a, b) => (a !== null && a < b ? a : b), null);
