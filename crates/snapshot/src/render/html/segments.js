// The segment map: reserved memory laid out to scale, line below line, with the free bytes that live blocks strand.

import { color } from "./colors.js";
import { button, context, element, redraw, styled } from "./dom.js";
import { bytes, count } from "./format.js";

const ROW = 15;
const ROW_GAP = 3;
const GROUP_GAP = 22;
const ROWS_WANTED = 26;
const HATCH = 6;
const LIVE = 0;
const STRANDED = 2;
const RELEASABLE = 3;
const KINDS = [
  ["live", "--unknown"],
  ["waits for another stream", "--pending"],
  ["stranded: free, in a segment that a live block holds", "--stranded"],
  ["releasable: free, and could go back to the driver", "--releasable"],
  ["many small blocks", "--mixed"],
];

/** Diagonal lines: bytes that are there and cannot be used. */
function hatch(ctx) {
  const tile = element("canvas");
  [tile.width, tile.height] = [HATCH, HATCH];
  const pen = tile.getContext("2d");
  pen.strokeStyle = styled("--stranded");
  pen.lineWidth = 2;
  for (const shift of [-HATCH, 0, HATCH]) {
    pen.moveTo(shift - 1, HATCH + 1);
    pen.lineTo(shift + HATCH + 1, -1);
  }
  pen.stroke();
  return ctx.createPattern(tile, "repeat");
}

export class Segments {
  /** `shades`: the color of each band of the timeline, by the name of its line. */
  constructor(place, maps, shades) {
    Object.assign(this, { place, maps, shades, chosen: null });
    this.switches = maps.map((map, idx) => button(map.moment, `The segments ${map.moment}`, () => this.show(idx)));
    this.canvas = element("canvas", "map");
    Object.assign(this.canvas, { tabIndex: 0, role: "application" });
    this.canvas.setAttribute("aria-label", "Segments to scale. Keys: ←/→ go from block to block. The tables below hold the same figures.");
    this.now = element("p", "now");
    this.now.setAttribute("role", "status");
    this.sums = element("ul", "key");
    place.replaceChildren(element("div", "tools", ...this.switches), this.sums, this.canvas, this.now);
    this.canvas.addEventListener("pointermove", (event) => this.choose(this.spanAt(event.offsetX, event.offsetY)));
    this.canvas.addEventListener("pointerleave", () => this.choose(null));
    this.canvas.addEventListener("keydown", (event) => this.pressed(event));
    this.show(0);
    redraw(this.canvas, () => this.draw());
  }

  show(idx) {
    this.map = this.maps[idx];
    this.chosen = null;
    this.switches.forEach((node, other) => node.setAttribute("aria-pressed", String(other === idx)));
    const figure = (kind, value) => {
      const swatch = element("i", "swatch");
      if (kind === STRANDED) swatch.classList.add("is-stranded");
      else swatch.style.background = `var(${KINDS[kind][1]})`;
      return element("li", "", swatch, `${bytes(value)} ${KINDS[kind][0]}`);
    };
    const { live, stranded, releasable, pending } = this.map;
    const shown = [figure(LIVE, live), figure(STRANDED, stranded), figure(RELEASABLE, releasable)];
    if (pending > 0) shown.push(figure(1, pending));
    this.sums.replaceChildren(...shown);
    this.spans = this.map.groups.flatMap(({ spans }) => spans);
    this.draw();
  }

  /** Lays the spans out: a list of boxes for each span, in the order of `spans`. */
  layout(width) {
    const perRow = this.map.groups.reduce((sum, { spans }) => sum + spans.reduce((all, [size]) => all + size, 0), 0) / ROWS_WANTED;
    this.perPixel = Math.max(perRow / width, 1);
    this.boxes = [];
    this.titles = [];
    let y = GROUP_GAP;
    for (const { name, spans } of this.map.groups) {
      this.titles.push({ name, y });
      let x = 0;
      for (const span of spans) {
        const boxes = [];
        let rest = span[0] / this.perPixel;
        while (rest > 0.01) {
          const part = Math.min(rest, width - x);
          boxes.push({ x, y, width: part });
          rest -= part;
          x += part;
          if (x >= width - 0.01) [x, y] = [0, y + ROW + ROW_GAP];
        }
        this.boxes.push(boxes);
      }
      y += ROW + ROW_GAP + GROUP_GAP;
    }
    return Math.max(y - GROUP_GAP, ROW);
  }

  draw() {
    if (!this.canvas.isConnected || !this.place.clientWidth) return;
    const height = this.layout(this.place.clientWidth);
    if (this.canvas.style.height !== `${height}px`) this.canvas.style.height = `${height}px`;
    const { ctx } = context(this.canvas);
    ctx.fillStyle = styled("--quiet");
    ctx.textBaseline = "bottom";
    for (const { name, y } of this.titles) ctx.fillText(name, 0, y - 4);
    const stranded = hatch(ctx);
    this.spans.forEach((span, idx) => this.drawSpan({ ctx, stranded }, span, idx));
    this.report();
  }

  drawSpan({ ctx, stranded }, [, kind, site, , , isFirst], idx) {
    const shade = kind === LIVE ? this.shades.get(this.map.sites[site]) : KINDS[kind][1];
    const fill = kind === STRANDED ? stranded : color(shade ?? "--rest");
    this.boxes[idx].forEach(({ x, y, width }, part) => {
      const gap = width > 3 ? 0.5 : 0;
      ctx.fillStyle = fill;
      ctx.fillRect(x, y, Math.max(width - gap, 0.3), ROW);
      if (isFirst && part === 0) {
        ctx.fillStyle = styled("--text");
        ctx.fillRect(x, y - 2, 1, ROW + 4);
      }
      if (idx === this.chosen) {
        ctx.strokeStyle = styled("--text");
        ctx.lineWidth = 2;
        ctx.strokeRect(x + 1, y + 1, Math.max(width - 2, 1), ROW - 2);
      }
    });
  }

  spanAt(x, y) {
    const isIn = (box) => x >= box.x && x <= box.x + Math.max(box.width, 1) && y >= box.y - 1 && y <= box.y + ROW + 1;
    const found = this.boxes.findIndex((boxes) => boxes.some(isIn));
    return found < 0 ? null : found;
  }

  choose(span) {
    if (span === this.chosen) return;
    this.chosen = span;
    this.draw();
  }

  pressed(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    this.choose(((this.chosen ?? (by > 0 ? -1 : 0)) + by + this.spans.length) % this.spans.length);
  }

  report() {
    const span = this.spans[this.chosen];
    if (!span) {
      this.now.textContent = "Point at a block, or go through them with ←/→. A dark edge begins a segment.";
      return;
    }
    const [size, kind, site, blocks, live] = span;
    const name = this.map.sites[site] ?? "other lines";
    const words = {
      0: () => `${bytes(size)} live: ${name}`,
      1: () => `${bytes(size)} freed, but another stream may still use it: ${name}`,
      2: () => `${bytes(size)} stranded: free, and cannot go back while blocks next to it live`,
      3: () => `${bytes(size)} releasable: free, and torch.cuda.empty_cache() would give it back`,
      4: () => `${bytes(size)} in ${count(blocks)} small blocks, ${bytes(live)} of it live`,
    };
    this.now.textContent = words[kind]();
  }
}
