// The history of `allocated` by rank. A full one drops every second point and takes half as many from then on, so
// that it reaches back to the opening of the page within SPARK_POINTS_MAX points.

import { attribute, hint } from "./dom.js";
import { bytes, duration, isKnown } from "./format.js";
import { subjectKey } from "./subjects.js";

const SPARK_POINTS_MAX = 120;
const SPARK_WIDTH = 80;
const SPARK_HEIGHT = 20;

const sparks = new Map();

export function remember({ ranks }) {
  const now = performance.now() / 1000;
  const present = new Set();
  for (const rank of ranks) {
    const key = subjectKey(rank);
    present.add(key);
    if (!isKnown(rank.allocated_bytes)) continue;
    const spark = sparks.get(key) ?? { points: [], gap: 0 };
    sparks.set(key, spark);
    spark.last = [now, rank.allocated_bytes];
    const newest = spark.points.at(-1);
    if (newest && now - newest[0] < spark.gap) continue;
    spark.points.push(spark.last);
    if (spark.points.length >= SPARK_POINTS_MAX) {
      spark.points = spark.points.filter((_, idx) => idx % 2 === 0);
      const reach = spark.points.at(-1)[0] - spark.points[0][0];
      spark.gap = (0.95 * reach) / (spark.points.length - 1);
    }
  }
  for (const key of sparks.keys()) if (!present.has(key)) sparks.delete(key);
}

export function sparkline(parent) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const line = document.createElementNS(space, "polyline");
  svg.append(line);
  svg.setAttribute("viewBox", `0 0 ${SPARK_WIDTH} ${SPARK_HEIGHT}`);
  svg.setAttribute("aria-hidden", "true");
  parent.append(svg);
  return (key, level) => {
    attribute(svg, "class", level ? `spark level-${level}` : "spark");
    const { points, last } = sparks.get(key) ?? { points: [] };
    if (points.length === 0) return line.removeAttribute("points");
    const all = points.at(-1) === last ? points : [...points, last];
    const values = all.map((point) => point[1]);
    const low = Math.min(...values);
    const high = Math.max(...values);
    // A range below one percent of the figure is drawn flat, or noise would look like creep.
    const span = Math.max(high - low, 0.01 * high, 1);
    const floor = (low + high - span) / 2;
    const began = all[0][0];
    const reach = Math.max(last[0] - began, 1);
    const place = ([time, value]) => {
      const x = 1 + ((time - began) / reach) * (SPARK_WIDTH - 2);
      const y = SPARK_HEIGHT - 2 - ((value - floor) / span) * (SPARK_HEIGHT - 4);
      return `${x.toFixed(1)},${y.toFixed(1)}`;
    };
    attribute(line, "points", all.map(place).join(" "));
    hint(parent, `from ${bytes(values[0])} to ${bytes(last[1])} in ${duration(last[0] - began)}`);
  };
}
