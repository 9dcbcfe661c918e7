// The memory of ranks and processes, drawn as small lines: of a rank as far back as the exporter knows it, of a process since the
// page was opened.

import { attribute, hint } from "./dom.js";
import { bytes, duration, isKnown } from "./format.js";
import { processKey, rankKey } from "./view.js";

const POINTS_MAX = 120;
const WIDTH = 80;
const HEIGHT = 20;

// By subject. A full history drops every second point and takes half as many from then on, so that it reaches back to
// the opening of the page within POINTS_MAX points.
const histories = new Map();

/** Adds the figures of a status. */
export function remember({ ranks, processes = [] }) {
  const figures = new Map([
    ...ranks.map((rank) => [rankKey(rank), rank.allocated_bytes]),
    ...processes.map((process) => [processKey(process), process.used_bytes]),
  ]);
  const now = performance.now() / 1000;
  for (const [key, value] of figures) if (isKnown(value)) add(key, [now, value]);
  for (const key of histories.keys()) if (!figures.has(key)) histories.delete(key);
}

function add(key, point) {
  const history = histories.get(key) ?? { points: [], gap: 0 };
  histories.set(key, history);
  history.last = point;
  const newest = history.points.at(-1);
  if (newest && point[0] - newest[0] < history.gap) return;
  history.points.push(point);
  if (history.points.length < POINTS_MAX) return;
  history.points = history.points.filter((_, idx) => idx % 2 === 0);
  const reach = history.points.at(-1)[0] - history.points[0][0];
  history.gap = (0.95 * reach) / (history.points.length - 1);
}

/** Takes the past of a run's ranks, as the exporter keeps it. `elapsed` is how many seconds ago a Unix time was. */
export function recall({ run, time, ranks }, elapsed) {
  const now = performance.now() / 1000;
  for (const { rank, allocated_bytes: values } of ranks) {
    const history = histories.get(rankKey({ run, rank }));
    if (!history || history.points[0]?.[0] <= now - elapsed(time[0]) + 1) continue;
    const known = time.flatMap((at, idx) => (isKnown(values[idx]) ? [[now - elapsed(at), values[idx]]] : []));
    const all = [...known.filter(([at]) => at < history.points[0]?.[0]), ...history.points];
    history.points = all.filter((_, idx) => idx % Math.ceil(all.length / POINTS_MAX) === 0);
    history.gap = Math.max(history.gap, (all.at(-1)[0] - all[0][0]) / POINTS_MAX);
  }
}

/** Adds a line to `parent` that draws the history of a subject by its key. */
export function sparkline(parent) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const line = document.createElementNS(space, "polyline");
  svg.append(line);
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("aria-hidden", "true");
  parent.append(svg);
  return (key, level) => {
    attribute(svg, "class", level ? `spark level-${level}` : "spark");
    const { points, last } = histories.get(key) ?? { points: [] };
    if (points.length === 0) return line.removeAttribute("points");
    const all = points.at(-1) === last ? points : [...points, last];
    attribute(line, "points", placed(all));
    hint(parent, `from ${bytes(all[0][1])} to ${bytes(last[1])} in ${duration(last[0] - all[0][0])}`);
  };
}

function placed(points) {
  const values = points.map((point) => point[1]);
  const low = Math.min(...values);
  const high = Math.max(...values);
  // A range below one percent of the figure is drawn flat, or noise would look like creep.
  const span = Math.max(high - low, 0.01 * high, 1);
  const floor = (low + high - span) / 2;
  const began = points[0][0];
  const reach = Math.max(points.at(-1)[0] - began, 1);
  const place = ([time, value]) => {
    const x = 1 + ((time - began) / reach) * (WIDTH - 2);
    const y = HEIGHT - 2 - ((value - floor) / span) * (HEIGHT - 4);
    return `${x.toFixed(1)},${y.toFixed(1)}`;
  };
  return points.map(place).join(" ");
}
