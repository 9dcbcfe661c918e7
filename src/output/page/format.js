// Figures as people read them. What is unknown is a dash.

import { state } from "./state.js";

export const LEVELS = { info: 1, warning: 2, critical: 3 };
export const DASH = "–";
export const NUMBER = new Intl.NumberFormat("en");
export const isKnown = (value) => value !== null && value !== undefined;
export const known = (value, format) => (isKnown(value) ? format(value) : DASH);
export const number = (value) => NUMBER.format(value);
export const plural = (n, noun) => `${number(n)} ${noun}${n === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;
export const minus = (text) => text.replace("-", "\u2212");
export const percent = (ratio) => minus(`${Math.round(100 * ratio) || 0}%`);
export const signed = (ratio) => (Math.round(100 * ratio) > 0 ? "+" : "") + percent(ratio);
// By the exporter's own clock, not the reader's.
export const since = (unix) => duration(Math.max(state.status.time - unix, 0));
export const ago = (unix) => (state.status.time - unix < 1 ? "now" : `${since(unix)} ago`);
export const milli = (seconds) => `${(1000 * seconds).toFixed(2)} ms`;
export const stamp = (unix) => new Date(1000 * unix).toLocaleString();
export const levelOf = (findings) => findings.reduce((worst, f) => Math.max(worst, LEVELS[f.severity]), 0);
export const most = (values) => values.filter(isKnown).reduce((a, b) => (a > b ? a : b), null);
export const least = (values) => values.filter(isKnown).reduce((a, b) => (a !== null && a < b ? a : b), null);

export function bytes(value) {
  if (Math.abs(value) < 0.5) return "0 B";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const size = Math.abs(value);
  return `${minus(value.toFixed(unit === 0 || size >= 100 ? 0 : size >= 10 ? 1 : 2))} ${units[unit]}`;
}

export function duration(seconds) {
  const minutes = Math.floor(seconds / 60);
  const hours = Math.floor(minutes / 60);
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (minutes < 60) return `${minutes} min`;
  if (hours < 24) return `${hours} h ${minutes % 60} min`;
  return `${number(Math.floor(hours / 24))} d ${hours % 24} h`;
}

export function eta({ oom_eta_seconds: seconds, oom_eta_steps: steps }) {
  if (isKnown(seconds)) return duration(seconds);
  return known(steps, (value) => plural(Math.round(value), "step"));
}

export function grouped(items, key) {
  const groups = new Map();
  for (const item of items) {
    const group = groups.get(key(item));
    if (group) group.push(item);
    else groups.set(key(item), [item]);
  }
  return groups;
}
