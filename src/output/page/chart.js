// A chart of memory, or of a number, over time, drawn by uPlot: lines, a ceiling, markers, and a legend with the figures under the pointer.

import { attribute, element, text } from "./dom.js";
import { DASH, bytes, isKnown } from "./format.js";

// Ticks of powers of two, for figures in KiB, MiB and GiB.
const BYTE_TICKS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const [MINUTE, HOUR, DAY] = [60, 3600, 86_400];
const TIME_TICKS = [1, 2, 5, 10, 15, 20, 30, ...[1, 2, 3, 5, 10, 15, 30].map((n) => n * MINUTE), ...[1, 2, 3, 6, 12].map((n) => n * HOUR), ...[1, 2, 5, 10, 20, 50, 100].map((n) => n * DAY)];
const AXIS_WIDTH = 62;
const LABEL_GAP = 6;
const LABEL_ROWS = 3;
const LABEL_PX = 13;
// The colors of labels, the most important last.
const LABEL_ORDER = ["quiet", "text", "live", "info", "warning", "critical"];

export const dark = matchMedia("(prefers-color-scheme: dark)");
/** The colors of the levels of findings, from none to critical; a level that this page does not know is the worst. */
export const levelColor = (level) => ["live", "info", "warning"][level] ?? "critical";
export const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** A time of an axis whose ticks are `step` seconds apart. */
function clock(time, step) {
  const date = new Date(1000 * time);
  if (step >= DAY) return date.toLocaleDateString([], { month: "short", day: "numeric" });
  const seconds = step < MINUTE ? { second: "2-digit" } : {};
  return date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false, ...seconds });
}

/** A time as the legend has it. */
const moment = (time) => {
  const isToday = Math.abs(Date.now() / 1000 - time) < DAY / 2;
  const day = isToday ? {} : { month: "short", day: "numeric" };
  return new Date(1000 * time).toLocaleString([], { ...day, hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
};

export class Chart {
  /** A chart in `figure`, as wide as it and `height` pixels high, of what `say` puts in words; `zoomed` is called when that changes. */
  constructor(figure, { height, say = bytes, zoomed = () => {}, picked = () => {} }) {
    Object.assign(this, { height, say, zoomed, picked, plot: null, shape: "", isZoomed: false, shown: null });
    this.box = element("div", "plot");
    this.box.style.height = `${height}px`;
    this.legend = element("figcaption", "legend");
    this.when = element("time", "quiet");
    this.keys = [];
    figure.append(this.legend, this.box);
    this.box.tabIndex = 0;
    this.box.setAttribute("role", "img");
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("click", () => isKnown(this.near) && this.picked(this.near));
    new ResizeObserver(() => this.fit()).observe(this.box);
    dark.addEventListener("change", () => {
      this.shape = "";
      if (this.shown) this.draw(this.shown);
    });
  }

  /**
   * Draws `{ name, time, lines, bands, ceiling, markers, range, tone }`: a line has `label`, `values`, `color` and, if it wants, `width`,
   * `dash`, `fill` and `isQuiet`, which leaves it out of the legend. `range` is the least and the greatest value of the axis.
   */
  draw(shown) {
    this.shown = shown;
    attribute(this.box, "aria-label", shown.name);
    const shape = JSON.stringify([shown.lines.map(({ label, color: of, width, dash, isQuiet }) => [label, of, width, dash, isQuiet]), shown.bands ?? []]);
    if (shape !== this.shape || !this.plot) this.make(shape);
    const data = [shown.time, ...shown.lines.map((line) => line.values)];
    this.plot.setData(data, !this.isZoomed);
    if (this.isZoomed) this.plot.redraw();
    this.tell();
  }

  make(shape) {
    this.plot?.destroy();
    this.shape = shape;
    this.isZoomed = false;
    const { lines, bands = [] } = this.shown;
    this.legend.replaceChildren(this.when);
    this.keys = lines.map((line) => this.addKey(line));
    const axis = { stroke: color("quiet"), grid: { stroke: color("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const options = {
      width: Math.max(this.box.clientWidth, 100),
      height: this.height,
      legend: { show: false },
      padding: [this.shown.markers ? 8 + LABEL_ROWS * LABEL_PX : 8, 26, 0, 0],
      cursor: { drag: { x: true, y: false }, points: { size: 5 }, focus: { prox: 24 } },
      focus: { alpha: 1 },
      scales: { x: { time: true, range: (plot, low, high) => this.times(low, high) }, y: { range: () => this.shown.range } },
      axes: [
        { ...axis, size: 28, gap: 7, space: 58, incrs: TIME_TICKS, values: (plot, ticks, idx, space, step) => ticks.map((tick) => clock(tick, step)) },
        { ...axis, size: AXIS_WIDTH, gap: 3, incrs: BYTE_TICKS, values: (plot, ticks) => ticks.map((value) => this.say(value).replace(/\.0+ /, " ")) },
      ],
      series: [{}, ...lines.map((line) => this.series(line))],
      bands: bands.map(({ between, tone }) => ({ series: between, fill: color(tone) })),
      hooks: {
        draw: [(plot) => this.annotate(plot)],
        setCursor: [() => this.tell()],
        setSeries: [(plot, idx) => (this.near = isKnown(idx) ? idx - 1 : null)],
        setScale: [(plot, key) => key === "x" && this.scaled(plot)],
      },
    };
    this.plot = new window.uPlot(options, [this.shown.time, ...lines.map((line) => line.values)], this.box);
  }

  series({ color: of, width = 1.5, dash, fill, spans = false }) {
    return { stroke: color(of), width, dash, fill: fill && color(fill), spanGaps: spans, points: { show: false, filter: (plot, idx) => (spans ? null : lonely(plot.data[idx])) } };
  }

  addKey({ label, color: of, isQuiet, dash }) {
    if (isQuiet) return null;
    const swatch = element("i", dash ? "is-dashed" : "");
    swatch.style.color = color(of);
    const value = element("b");
    this.legend.insertBefore(element("span", "", swatch, `${label} `, value), this.when);
    return value;
  }

  /** The times that are shown: all, unless the reader zoomed. */
  times(low, high) {
    const { time } = this.shown;
    // Around a single time, uPlot takes years.
    return time.length < 2 || low === high ? [(time[0] ?? 0) - 1, (time[0] ?? 0) + 1] : [low, high];
  }

  scaled(plot) {
    const { time } = this.shown;
    const { min, max } = plot.scales.x;
    const isZoomed = time.length > 1 && (min > time[0] || max < time.at(-1));
    if (isZoomed === this.isZoomed) return;
    this.isZoomed = isZoomed;
    this.zoomed(isZoomed);
  }

  unzoom() {
    this.isZoomed = false;
    if (this.plot) this.plot.setData(this.plot.data, true);
    this.zoomed(false);
  }

  fit() {
    const width = this.box.clientWidth;
    if (this.plot && width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: this.height });
  }

  /** Moves the pointer by the arrow keys, and zooms by + and −. */
  key(event) {
    const { plot } = this;
    if (!plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const { min, max } = plot.scales.x;
    const last = plot.data[0].length - 1;
    const idx = plot.cursor.idx ?? last;
    const to = { ArrowLeft: idx - 1, ArrowRight: idx + 1, Home: 0, End: last }[event.key];
    const zoom = { "+": 0.5, "-": 2 }[event.key];
    if (isKnown(to)) {
      const time = plot.data[0][Math.min(Math.max(to, 0), last)];
      plot.setCursor({ left: plot.valToPos(time, "x"), top: plot.bbox.height / 2 / devicePixelRatio });
    } else if (zoom) {
      const middle = isKnown(plot.cursor.idx) ? plot.data[0][plot.cursor.idx] : (min + max) / 2;
      const half = ((max - min) / 2) * zoom;
      const [first, end] = [plot.data[0][0], plot.data[0][last]];
      if (2 * half >= end - first) this.unzoom();
      else plot.setScale("x", { min: Math.max(middle - half, first), max: Math.min(middle + half, end) });
    } else {
      return;
    }
    event.preventDefault();
  }

  /** Writes the figures under the pointer, or the last known ones. */
  tell() {
    const { shown, plot } = this;
    if (!plot || !shown) return;
    const idx = plot.cursor.idx;
    const at = isKnown(idx) ? shown.time[idx] : null;
    shown.lines.forEach((line, nth) => {
      const value = isKnown(at) ? line.values[idx] : line.values.findLast(isKnown);
      if (this.keys[nth]) text(this.keys[nth], isKnown(value) ? this.say(value) : DASH);
    });
    const near = isKnown(at) ? (shown.markers ?? []).filter((marker) => Math.abs(plot.valToPos(marker.time, "x") - plot.cursor.left) < 5) : [];
    const words = near.map((marker) => marker.words ?? marker.label).filter(Boolean);
    const step = isKnown(at) && shown.steps?.[idx];
    text(this.when, isKnown(at) ? [moment(at), step ? `step ${step.toLocaleString("en")}` : "", shown.hover?.(this.near) ?? "", ...words].filter(Boolean).join(" · ") : "");
  }

  /** Draws the ceiling and the markers over the lines. */
  annotate(plot) {
    const { ctx, bbox } = plot;
    const { ceiling, markers = [] } = this.shown;
    const ratio = devicePixelRatio;
    ctx.save();
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.lineWidth = ratio;
    [ctx.textAlign, ctx.textBaseline] = ["left", "alphabetic"];
    const labels = [];
    for (const marker of markers) {
      const x = Math.round(plot.valToPos(marker.time, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      [ctx.strokeStyle, ctx.fillStyle] = [color(marker.color), color(marker.color)];
      if (marker.isTick) {
        ctx.fillRect(x - ratio, bbox.top + bbox.height - 6 * ratio, 2 * ratio, 6 * ratio);
        continue;
      }
      ctx.setLineDash(marker.isDashed ? [3 * ratio, 3 * ratio] : []);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      labels.push({ ...marker, x });
    }
    drawLabels(plot, labels, ratio);
    if (ceiling && ceiling.value <= plot.scales.y.max) drawCeiling(plot, ceiling, ratio);
    ctx.restore();
  }
}

/** Writes labels above their markers in as many rows as there is space for, the most important first. */
function drawLabels({ ctx, bbox }, labels, ratio) {
  const rows = Array.from({ length: LABEL_ROWS }, () => []);
  const rank = ({ color: of }) => LABEL_ORDER.indexOf(of);
  for (const { label, x, color: of } of labels.sort((a, b) => rank(b) - rank(a) || b.x - a.x)) {
    const width = ctx.measureText(label).width + LABEL_GAP * ratio;
    const left = Math.max(Math.min(x, bbox.left + bbox.width - width), 0);
    const idx = rows.findIndex((row) => row.every(([from, to]) => left + width < from || left > to));
    if (idx < 0) continue;
    rows[idx].push([left, left + width]);
    ctx.fillStyle = color(of);
    ctx.fillText(label, left, bbox.top - (4 + LABEL_PX * idx) * ratio);
  }
}

function drawCeiling(plot, { value, label, color: of }, ratio) {
  const { ctx, bbox } = plot;
  const y = Math.round(plot.valToPos(value, "y", true));
  [ctx.strokeStyle, ctx.fillStyle] = [color(of), color(of)];
  ctx.setLineDash([6 * ratio, 3 * ratio]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.setLineDash([]);
  // In the middle: growth meets the line at the right end, and markers stand at both ends. One behind it ends at its halo.
  ctx.textAlign = "center";
  const at = [label, bbox.left + bbox.width / 2, y + 13 * ratio];
  [ctx.strokeStyle, ctx.lineWidth] = [color("panel"), 6 * ratio];
  ctx.strokeText(...at);
  ctx.fillText(...at);
}

/** The points of a line that have no neighbor, and are drawn as dots; `null` if it has none. */
function lonely(values) {
  const found = [...values.keys()].filter((idx) => isKnown(values[idx]) && !isKnown(values[idx - 1]) && !isKnown(values[idx + 1]));
  return found.length > 0 ? found : null;
}

