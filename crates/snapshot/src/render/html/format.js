// Figures in words, as the command prints them.

const NUMBER = new Intl.NumberFormat("en");
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export const count = (value) => NUMBER.format(value);

export const share = (part, whole) => `${(whole > 0 ? (100 * part) / whole : 0).toFixed(1)}%`;

export function bytes(value) {
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const size = Math.abs(value);
  const digits = unit === 0 || size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

/** A time since the first event, in as few figures as tell two events apart. */
export function elapsed(micros) {
  if (micros < 1e3) return `${micros} µs`;
  if (micros < 1e6) return `${(micros / 1e3).toFixed(2)} ms`;
  return `${(micros / 1e6).toFixed(3)} s`;
}

/** Round values from 0 to `most`, at most `n` of them, for the lines of an axis. */
export function ticks(most, n) {
  const unit = 2 ** Math.floor(Math.log2(Math.max(most / n, 1)));
  const step = [1, 2, 4].map((factor) => factor * unit).find((step) => most / step <= n) ?? 4 * unit;
  const found = [];
  for (let value = 0; value <= most; value += step) found.push(value);
  return found;
}
