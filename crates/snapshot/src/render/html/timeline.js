// The timeline of a device: what is held from event to event, with zoom, a cursor and the stack of a band.

import { draw, drawCursor, drawOverview } from "./chart.js";
import { color, paint } from "./colors.js";
import { button, element, redraw } from "./dom.js";
import { bytes, count, elapsed, share } from "./format.js";
import { Stack } from "./stack.js";
import { View } from "./view.js";

const ZOOM = 0.6;
const PAN = 0.25;
const DRAG_PIXELS_MIN = 5;
const HELP = "Drag to zoom, click to pin. Keys: ←/→ move, shift with them pans, +/− zoom, ↑/↓ choose a band, P goes to the peak, 0 shows all, Enter pins and lists the events of the band.";

export class Timeline {
  constructor(place, picture) {
    Object.assign(this, { place, picture, view: new View(picture.states.at(-1)) });
    Object.assign(this, { cursor: picture.peak, isPinned: false, chosen: null, drag: null, plane: null });
    this.reserved = picture.reserved.map((value) => value * picture.unit);
    this.marks = [{ event: picture.peak, text: "peak", tone: "--text" }];
    this.marks.push(...picture.failures.map((event) => ({ event, text: "out of memory", tone: "--critical" })));
    this.build();
    this.show("lines");
    redraw(this.canvas, () => this.draw());
  }

  build() {
    const by = (name, text) => {
      const node = button(text, `Color by ${text}`, () => this.show(name));
      node.dataset.by = name;
      return node;
    };
    this.switches = [by("lines", "line"), by("categories", "category")];
    const zoom = (factor) => () => this.change(() => this.view.zoom(factor, this.middle()));
    const tools = element(
      "div",
      "tools",
      element("span", "quiet", "by"),
      ...this.switches,
      button("+", "Zoom in", zoom(ZOOM)),
      button("−", "Zoom out", zoom(1 / ZOOM)),
      button("all", "Show the whole window", () => this.change(() => this.view.reset())),
      button("peak", "Zoom to the peak", () => this.toPeak()),
      (this.range = element("span", "quiet range")),
    );
    this.canvas = element("canvas", "areas");
    this.over = element("canvas", "areas over");
    Object.assign(this.over, { tabIndex: 0, role: "application" });
    this.over.setAttribute("aria-label", `Memory over the window. ${HELP} The tables below hold the same figures.`);
    this.overview = element("canvas", "overview");
    this.now = element("p", "now");
    this.now.setAttribute("role", "status");
    this.legend = element("ul", "legend");
    this.detail = element("div", "detail");
    const left = element("div", "picture", tools, element("div", "layers", this.canvas, this.over), this.overview, element("p", "quiet hint", HELP));
    this.place.replaceChildren(left, element("div", "side", this.now, this.legend, this.detail));
    this.listen();
  }

  listen() {
    this.over.addEventListener("pointermove", (event) => this.moved(event));
    this.over.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.over.setPointerCapture(event.pointerId);
      this.drag = { x: event.offsetX, from: this.plane.event(event.offsetX), to: null };
    });
    this.over.addEventListener("pointerup", (event) => this.released(event));
    this.over.addEventListener("pointercancel", () => this.change(() => (this.drag = null)));
    this.over.addEventListener("dblclick", () => this.change(() => this.view.reset()));
    this.over.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      this.change(() => this.view.zoom(event.deltaY > 0 ? 1 / ZOOM : ZOOM, this.plane.event(event.offsetX)));
    }, { passive: false });
    this.over.addEventListener("keydown", (event) => this.pressed(event));
    this.overview.addEventListener("pointerdown", (event) => {
      const { width } = this.overview.getBoundingClientRect();
      const middle = ((event.offsetX - 68) / Math.max(width - 78, 1)) * this.view.last;
      this.change(() => this.view.set(middle - this.view.width / 2, middle + this.view.width / 2));
    });
  }

  /** Stacks the bands of lines or of categories. */
  show(by) {
    this.by = by;
    this.bands = this.picture[by];
    this.stack = new Stack(this.picture.states, this.bands, this.picture.unit);
    this.colors = paint(this.bands);
    this.chosen = null;
    for (const node of this.switches) node.setAttribute("aria-pressed", String(node.dataset.by === by));
    this.rows = this.bands.map((band, idx) => this.legendRow(band, idx));
    // As they lie in the picture: the uppermost first.
    this.legend.replaceChildren(...this.rows.map(({ node }) => node).reverse());
    this.draw();
  }

  legendRow(band, idx) {
    const swatch = element("i", "swatch");
    const held = element("span", "held");
    const choose = button("", band.name, () => {
      this.change(() => (this.chosen = this.chosen === idx ? null : idx));
      this.pick();
    });
    choose.append(swatch, element("span", "name", band.name), held);
    return { node: element("li", "", choose), choose, swatch, held };
  }

  middle() {
    const { cursor, view } = this;
    return cursor !== null && cursor >= view.from && cursor <= view.to ? cursor : (view.from + view.to) / 2;
  }

  change(action) {
    action();
    this.draw();
  }

  toPeak() {
    const width = Math.max(this.view.last / 200, 40);
    this.change(() => {
      this.cursor = this.picture.peak;
      this.view.set(this.cursor - width, this.cursor + width);
    });
  }

  moved(event) {
    const at = this.plane.event(event.offsetX);
    if (this.drag) {
      this.drag.to = Math.abs(event.offsetX - this.drag.x) >= DRAG_PIXELS_MIN ? at : null;
    } else if (!this.isPinned) {
      this.cursor = Math.min(Math.max(at, 0), this.view.last);
      this.hovered = this.stack.bandAt(this.stack.sampleAt(this.cursor), this.plane.value(event.offsetY));
    }
    this.drawOver();
  }

  released(event) {
    const drag = this.drag;
    this.drag = null;
    if (!drag) return;
    if (drag.to !== null) return this.change(() => this.view.set(drag.from, drag.to));
    const at = Math.min(Math.max(drag.from, 0), this.view.last);
    const band = this.stack.bandAt(this.stack.sampleAt(at), this.plane.value(event.offsetY));
    const isSame = this.isPinned && this.chosen === band;
    this.change(() => Object.assign(this, { cursor: at, isPinned: !isSame, chosen: isSame ? null : band }));
    if (!isSame) this.pick();
  }

  /** Tells whoever listens which band and moment are chosen. */
  pick() {
    const band = this.chosen === null ? null : this.bands[this.chosen];
    const others = new Set(this.bands.map(({ name }) => name));
    const picked = band && { by: this.by, name: band.name, isRest: band.kind === "rest", others };
    this.onPick?.({ state: Math.round(this.cursor ?? 0), band: picked });
  }

  /** Moves the cursor to a state, and pins it. */
  goTo(state) {
    this.change(() => {
      Object.assign(this, { cursor: state, isPinned: true, hovered: null });
      this.view.reveal(state);
    });
  }

  /** The number of the step that an event is in; `null` before the first, and where not all steps are in the document. */
  stepAt(event) {
    const { steps, every } = this.picture;
    if (every > 1) return null;
    let [low, high] = [0, steps.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle][0] <= event) low = middle + 1;
      else high = middle;
    }
    return low > 0 ? steps[low - 1][1] : null;
  }

  pressed(event) {
    const action = this.keys(event)[event.key];
    if (!action || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    this.change(action);
  }

  keys({ shiftKey }) {
    const { view, picture } = this;
    const step = (by) => () => (shiftKey ? view.pan(by * PAN) : this.move(by));
    const choose = (by) => () => {
      const n = this.bands.length;
      this.chosen = this.chosen === null ? (by > 0 ? 0 : n - 1) : (this.chosen + by + n) % n;
    };
    const zoom = (factor) => () => view.zoom(factor, this.middle());
    const peak = () => {
      this.cursor = picture.peak;
      view.reveal(this.cursor);
    };
    return {
      ArrowLeft: step(-1),
      ArrowRight: step(1),
      ArrowUp: choose(1),
      ArrowDown: choose(-1),
      "+": zoom(ZOOM),
      "=": zoom(ZOOM),
      "-": zoom(1 / ZOOM),
      0: () => view.reset(),
      Home: () => view.reset(),
      p: peak,
      P: peak,
      Enter: () => {
        this.isPinned = !this.isPinned;
        if (this.isPinned) this.pick();
      },
      Escape: () => Object.assign(this, { isPinned: false, chosen: null }),
    };
  }

  /** Moves the cursor to the next sample that has a pixel of its own. */
  move(by) {
    const { states } = this.picture;
    const least = this.view.width / Math.max(this.plane.width, 1);
    let sample = this.stack.sampleAt(this.cursor ?? this.view.from);
    const start = states[sample];
    do sample += by;
    while (states[sample] !== undefined && Math.abs(states[sample] - start) < least);
    this.cursor = states[Math.min(Math.max(sample, 0), states.length - 1)];
    this.hovered = null;
    this.view.reveal(this.cursor);
  }

  draw() {
    if (!this.canvas.isConnected || !this.canvas.clientWidth) return;
    const { stack, view, reserved, colors, chosen, marks } = this;
    this.plane = draw(this.canvas, { stack, view, reserved, colors, chosen, marks, steps: this.picture.steps });
    drawOverview(this.overview, this);
    this.range.textContent = `events ${count(Math.round(view.from))} to ${count(Math.round(view.to))}`;
    this.drawOver();
  }

  drawOver() {
    const selection = this.drag && this.drag.to !== null ? [this.drag.from, this.drag.to] : null;
    drawCursor(this.over, this.plane, { cursor: this.cursor, isPinned: this.isPinned, selection });
    this.report();
  }

  /** Writes what the cursor is at. */
  report() {
    const { picture, stack } = this;
    const sample = stack.sampleAt(this.cursor ?? 0);
    const state = picture.states[sample];
    const named = this.chosen ?? this.hovered ?? null;
    const parts = [state > 0 ? `after event ${count(state - 1)} of ${count(stack.states.at(-1))}` : "before the first event"];
    const step = state > 0 ? this.stepAt(state - 1) : null;
    if (step !== null) parts.push(`step ${count(step)}`);
    if (picture.micros) parts.push(elapsed(picture.micros[sample]));
    const total = stack.total[sample];
    this.now.replaceChildren(
      element("b", "", `${bytes(total)} active`),
      ` of ${bytes(this.reserved[sample])} reserved`,
      element("span", "quiet", ` ${parts.join(" · ")}${this.isPinned ? " · pinned" : ""}`),
    );
    this.rows.forEach(({ choose, swatch, held }, idx) => {
      swatch.style.background = color(this.colors[idx]);
      held.textContent = bytes(stack.held(idx, sample));
      choose.setAttribute("aria-pressed", String(this.chosen === idx));
      choose.classList.toggle("is-named", named === idx);
    });
    this.describe(named, sample);
    if (named !== null && named !== this.last) this.reveal(this.rows[named].node);
    this.last = named;
  }

  /** Scrolls the legend, and only it, to a row. */
  reveal({ offsetTop, offsetHeight }) {
    const { scrollTop, clientHeight } = this.legend;
    const top = Math.min(scrollTop, offsetTop);
    this.legend.scrollTop = Math.max(top, offsetTop + offsetHeight - clientHeight);
  }

  /** Names a band with its stack. */
  describe(band, sample) {
    if (band === null || !this.bands[band]) {
      this.detail.replaceChildren(element("p", "quiet", "Point at a band, or choose one, to see its stack."));
      return;
    }
    const { name, stack: frames } = this.bands[band];
    const held = this.stack.held(band, sample);
    const lines = frames.map((frame) => element("li", "", frame));
    this.detail.replaceChildren(
      element("h4", "", name),
      element("p", "", `${bytes(held)}, ${share(held, this.stack.total[sample])} of what is active here`),
      lines.length > 0 ? element("ol", "frames", ...lines) : element("p", "quiet", "It has no stack of its own."),
    );
  }
}
