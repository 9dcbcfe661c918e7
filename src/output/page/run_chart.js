// The ranks of a run over each other: lines of a few ranks, a heat map of many, the worst ranks first.

import { $, attribute, element, show, text } from "./dom.js";
import { Chart, color, dark, levelColor } from "./chart.js";
import { bytes, isKnown, most, number, plural, timeLeft } from "./format.js";

/** The ranks that are drawn as lines; more are a heat map. */
const LINES_MAX = 32;
const ROW_PX = 4;
const rises = ({ values }) => (values.findLast(isKnown) ?? 0) - (values.find(isKnown) ?? 0);

/** Draws the past of a run's ranks; `picked` gets the rank that the reader points at. */
export function runChart(height, picked) {
  let ranks = [];
  const chart = new Chart($("run-lines"), { height, picked: (idx) => ranks[idx] && picked(ranks[idx].rank) });
  const map = new HeatMap($("run-map"), { height, picked });
  return (past, members, selected) => {
    const known = new Map(members.map((member) => [member.rank, member]));
    // What the status knows since the past was asked for, so that it is of the same moment as the chart of a rank.
    const last = most(members.map((member) => member.last_push_time));
    const isNewer = last > (past.time.at(-1) ?? 0) + 0.2;
    const time = isNewer ? [...past.time, last] : past.time;
    const all = past.ranks.map(({ rank, allocated_bytes: values }) => {
      const of = known.get(rank) ?? {};
      // A line that has broken off goes on with the next past: until then its end would be a dot of its own.
      const tail = of.end || !isKnown(values.at(-1)) ? null : of.allocated_bytes;
      return { rank, values: isNewer ? [...values, tail] : values, level: of.level ?? 0, left: timeLeft(of) };
    });
    const isMap = all.length > LINES_MAX;
    show($("run-lines"), !isMap);
    show($("run-map"), isMap);
    if (isMap) return map.draw({ run: past.run, time }, all.sort((a, b) => b.level - a.level || a.left - b.left || rises(b) - rises(a)), selected);
    // Lines that are drawn later are on top.
    ranks = all.sort((a, b) => Number(a.rank === selected) - Number(b.rank === selected) || a.level - b.level || b.rank - a.rank);
    const lines = ranks.map(({ rank, values, level }) => {
      const isMarked = rank === selected;
      return { label: `Rank ${rank}`, values, color: isMarked || level > 1 ? levelColor(level) : "other", width: isMarked ? 2.25 : 1, isQuiet: !isMarked && level < 2 };
    });
    chart.draw({
      name: `Live memory of ${plural(ranks.length, "rank")} of run ${past.run}, laid over each other`,
      time,
      lines,
      range: rangeOf(ranks),
      hover: (idx) => (ranks[idx] ? `rank ${ranks[idx].rank}` : ""),
    });
  };
}

function rangeOf(ranks) {
  const [low, high] = bounds(ranks);
  // What hardly changes is drawn flat.
  const margin = Math.max(0.08 * (high - low), 0.02 * high, 1);
  return [Math.max(low - margin, 0), high + margin];
}

function bounds(ranks) {
  let [low, high] = [Infinity, 0];
  for (const { values } of ranks) {
    for (const value of values) {
      if (!isKnown(value)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  return low > high ? [0, 1] : [low, high];
}

/** A row a rank, a column a time, darker for more memory. Only the rows in sight are drawn. */
class HeatMap {
  constructor(figure, { height, picked }) {
    this.height = height;
    this.legend = element("figcaption", "legend");
    [this.words, this.under] = [element("span"), element("span", "quiet")];
    this.legend.append(this.words, this.under);
    this.canvas = element("canvas");
    this.canvas.setAttribute("role", "img");
    this.inner = element("div", "map-rows", this.canvas);
    this.box = element("div", "map", this.inner);
    this.box.style.height = `${height}px`;
    this.box.tabIndex = 0;
    this.box.setAttribute("role", "region");
    this.box.setAttribute("aria-label", "Heat map of ranks");
    figure.append(this.legend, this.box);
    this.box.addEventListener("scroll", () => this.paint(), { passive: true });
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => text(this.under, ""));
    this.canvas.addEventListener("click", (event) => this.rowAt(event) && picked(this.rowAt(event).rank));
    new ResizeObserver(() => this.paint()).observe(this.box);
    dark.addEventListener("change", () => this.paint());
  }

  draw({ run, time }, ranks, selected) {
    Object.assign(this, { ranks, time, selected });
    const [low, high] = bounds(ranks);
    this.bounds = [low, high];
    this.inner.style.height = `${ranks.length * ROW_PX}px`;
    text(this.words, `${plural(ranks.length, "rank")}, worst first: ${bytes(low)} (light) to ${bytes(high)} (dark)`);
    attribute(this.canvas, "aria-label", `Live memory of ${plural(ranks.length, "rank")} of run ${run} over time; the worst is rank ${ranks[0].rank}`);
    this.paint();
  }

  paint() {
    if (!this.ranks) return;
    const { canvas, box, ranks } = this;
    const ratio = devicePixelRatio;
    const [wide, high] = [box.clientWidth, Math.min(this.height, ranks.length * ROW_PX)];
    if (wide === 0) return;
    Object.assign(canvas, { width: wide * ratio, height: high * ratio });
    canvas.style.height = `${high}px`;
    const ctx = canvas.getContext("2d");
    ctx.scale(ratio, ratio);
    const [low, top] = this.bounds;
    const span = Math.max(top - low, 0.01 * top, 1);
    const first = Math.floor(box.scrollTop / ROW_PX);
    const width = (wide - 8) / this.time.length;
    const tones = [0, 1, 2, 3].map((level) => color(levelColor(level)));
    ranks.slice(first, first + Math.ceil(high / ROW_PX)).forEach(({ rank, values, level }, idx) => {
      const y = idx * ROW_PX;
      ctx.globalAlpha = 1;
      ctx.fillStyle = rank === this.selected ? color("text") : tones[level];
      if (level > 0 || rank === this.selected) ctx.fillRect(0, y, 5, ROW_PX - 1);
      ctx.fillStyle = level > 1 ? tones[level] : tones[0];
      values.forEach((value, column) => {
        if (!isKnown(value)) return;
        ctx.globalAlpha = 0.12 + 0.88 * ((value - low) / span);
        ctx.fillRect(8 + column * width, y, width + 0.5, ROW_PX - 0.5);
      });
    });
  }

  rowAt(event) {
    return this.ranks?.[Math.floor((event.offsetY + this.box.scrollTop) / ROW_PX)];
  }

  point(event) {
    const row = this.rowAt(event);
    if (!row) return;
    const column = Math.floor(((event.offsetX - 8) / (this.box.clientWidth - 8)) * this.time.length);
    const value = row.values[column];
    const when = isKnown(this.time[column]) ? ` · ${new Date(1000 * this.time[column]).toLocaleTimeString()}` : "";
    text(this.under, `rank ${number(row.rank)}${when}${isKnown(value) ? ` · ${bytes(value)}` : ""}`);
  }
}
