// The list of events next to the timeline: every allocation and free in order, with both stacks of the one that is chosen.

import { Blocks } from "./blocks.js";
import { button, element } from "./dom.js";
import { bytes, count } from "./format.js";

const ROW_PIXELS = 22;
const ROWS_SPARE = 8;
const PAGE_ROWS = 12;
const EVENTS_HELP = "Keys: ↑/↓ and Page go from event to event, Home and End to the first and the last, ←/→ to the block's other event, Enter shows it in the timeline.";

export class Events {
  /** `timeline`: it is told what is chosen here, and tells what is chosen there. */
  constructor(place, table, timeline) {
    Object.assign(this, { place, timeline, blocks: new Blocks(table), chosen: null, band: null });
    this.entries = this.blocks.entries;
    this.build(table);
    timeline.onPick = (pick) => this.picked(pick);
    this.show();
  }

  build({ device, left_out: leftOut, left_out_bytes_max: most }) {
    this.sum = element("span", "quiet");
    this.all = button("all blocks", "List the events of all blocks", () => this.filter(null));
    this.body = element("div", "rows");
    this.list = element("div", "list", this.body);
    Object.assign(this.list, { tabIndex: 0, role: "listbox", id: `events-${device}` });
    this.list.setAttribute("aria-label", `Events. ${EVENTS_HELP}`);
    this.list.addEventListener("scroll", () => this.draw());
    this.list.addEventListener("keydown", (event) => this.pressed(event));
    this.list.addEventListener("click", (event) => {
      const row = event.target.closest("[data-place]");
      if (row) this.choose(Number(row.dataset.place));
    });
    this.detail = element("div", "block");
    this.detail.setAttribute("role", "status");
    const head = element("div", "row head", ...["Event", "Step", "Phase", "Size", "Active", "Category", "Line"].map((name) => element("span", "", name)));
    const left = leftOut > 0
      ? `${count(leftOut)} blocks are not listed here, of at most ${bytes(most)} each: stepmem snapshot events lists all. `
      : "";
    this.place.replaceChildren(
      element("div", "", element("div", "tools", this.sum, this.all), head, this.list, element("p", "quiet hint", left + EVENTS_HELP)),
      this.detail,
    );
    new ResizeObserver(() => this.draw()).observe(this.list);
  }

  /** Lists the blocks of a band of the timeline, or all. */
  filter(band) {
    this.band = band;
    const isWanted = this.isOf(band);
    this.entries = band ? this.blocks.entries.filter((entry) => isWanted(entry >> 1)) : this.blocks.entries;
    this.chosen = null;
    this.show();
  }

  /** Tells the blocks of a band from others; every block is of no band. */
  isOf(band) {
    if (!band) return () => true;
    const { table } = this.blocks;
    const { by, name, isRest, others } = band;
    const fits = by === "categories"
      ? table.categories.map((category) => category === name)
      : table.lines.map((line) => (isRest ? !others.has(line) : line === name));
    const column = by === "categories" ? table.category : table.line;
    return (block) => fits[column[block]];
  }

  show() {
    this.body.style.height = `${this.entries.length * ROW_PIXELS}px`;
    this.sum.textContent = `${count(this.entries.length)} events${this.band ? ` of ${this.band.name}` : ""}`;
    this.all.hidden = this.band === null;
    this.draw();
    this.describe();
  }

  /** A band or a moment was clicked in the timeline. */
  picked({ state, band }) {
    if (band ? band.name !== this.band?.name || band.by !== this.band?.by : this.band) this.filter(band);
    const block = this.blocks.largest(state, this.isOf(band));
    if (block === null) return;
    const entry = this.blocks.made(block) === null ? 2 * block + 1 : 2 * block;
    this.choose(this.entries.indexOf(entry), { block });
  }

  /** Chooses an event by its place in the list; a block that has none in the window is described all the same. */
  choose(place, { block = null, isFollowed = true } = {}) {
    const entry = this.entries[place];
    this.chosen = entry === undefined ? null : place;
    this.block = entry === undefined ? block : entry >> 1;
    if (entry !== undefined && isFollowed) this.reveal(place);
    this.draw();
    this.describe();
  }

  /** Scrolls the list, and only it, to a place. */
  reveal(place) {
    const { scrollTop, clientHeight } = this.list;
    const top = place * ROW_PIXELS;
    if (top < scrollTop) this.list.scrollTop = top;
    else if (top + ROW_PIXELS > scrollTop + clientHeight) this.list.scrollTop = top + ROW_PIXELS - clientHeight;
  }

  pressed(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const last = this.entries.length - 1;
    const at = this.chosen ?? -1;
    const places = {
      ArrowDown: at + 1,
      ArrowUp: at - 1,
      PageDown: at + PAGE_ROWS,
      PageUp: at - PAGE_ROWS,
      Home: 0,
      End: last,
      ArrowLeft: this.other(0),
      ArrowRight: this.other(1),
    };
    if (event.key === "Enter") this.toTimeline();
    else if (event.key in places && last >= 0) this.choose(Math.min(Math.max(places[event.key] ?? at, 0), last));
    else return;
    event.preventDefault();
  }

  /** The place of the chosen block's allocation (0) or free (1); where it has none, that of the chosen event. */
  other(side) {
    if (this.chosen === null) return 0;
    const place = this.entries.indexOf(2 * (this.entries[this.chosen] >> 1) + side);
    return place < 0 ? this.chosen : place;
  }

  toTimeline() {
    if (this.chosen !== null) this.timeline.goTo(this.blocks.event(this.entries[this.chosen]) + 1);
  }

  /** Draws the rows that are seen. */
  draw() {
    const { scrollTop, clientHeight } = this.list;
    const first = Math.max(Math.floor(scrollTop / ROW_PIXELS) - ROWS_SPARE, 0);
    const end = Math.min(Math.ceil((scrollTop + clientHeight) / ROW_PIXELS) + ROWS_SPARE, this.entries.length);
    const rows = [];
    for (let place = first; place < end; place += 1) rows.push(this.row(place));
    this.body.replaceChildren(...rows);
    if (this.chosen === null) this.list.removeAttribute("aria-activedescendant");
    else this.list.setAttribute("aria-activedescendant", `${this.list.id}-${this.chosen}`);
  }

  row(place) {
    const { blocks } = this;
    const entry = this.entries[place];
    const [block, event] = [entry >> 1, blocks.event(entry)];
    const step = this.timeline.stepAt(event);
    const size = `${entry % 2 === 1 ? "-" : "+"}${bytes(blocks.table.requested[block])}`;
    const line = [blocks.line(block), blocks.note(block)].filter(Boolean).join("; ");
    const cells = [count(event), step === null ? "" : count(step), blocks.phase(entry), size, bytes(blocks.active[entry]), blocks.category(block), line];
    const row = element("div", "row", ...cells.map((cell) => element("span", "", cell)));
    row.id = `${this.list.id}-${place}`;
    row.dataset.place = place;
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", String(place === this.chosen));
    row.style.top = `${place * ROW_PIXELS}px`;
    return row;
  }

  /** Shows the block of the chosen event: its life, both stacks, whose memory it takes and who takes it next. */
  describe() {
    const { blocks } = this;
    if (this.chosen === null && (this.block ?? null) === null) {
      this.detail.replaceChildren(element("p", "quiet", "Choose an event, or click a band of the timeline, to see where a block was allocated and freed."));
      return;
    }
    const block = this.block;
    const [made, freed] = [blocks.made(block), blocks.freed(block)];
    const step = (event) => (event === null || this.timeline.stepAt(event) === null ? "" : `, step ${count(this.timeline.stepAt(event))}`);
    const moment = (event, none) => (event === null ? none : `event ${count(event)}${step(event)}`);
    const life = made !== null && freed !== null ? `; lives ${count(freed - made)} event${freed - made === 1 ? "" : "s"}` : "";
    const figures = `${bytes(blocks.table.requested[block])} at 0x${blocks.address[block].toString(16)}, a block of ${bytes(blocks.bytes[block])}${life}`;
    const note = blocks.note(block);
    this.detail.replaceChildren(
      element("h4", "", blocks.line(block)),
      ...(note ? [element("p", "", note)] : []),
      element("p", "", figures),
      ...this.stack(`Allocated: ${moment(made, "before the window")}`, blocks.table.stack[block]),
      ...(freed === null
        ? [element("h5", "", `Not freed: ${blocks.ending(block)}`)]
        : this.stack(`Freed: ${moment(freed, "")}, ${blocks.ending(block)}`, blocks.table.free_stack[block])),
      ...this.neighbors(block),
    );
  }

  stack(title, number) {
    const frames = this.blocks.frames(number).map((frame) => element("li", "", frame));
    const below = frames.length > 0 ? element("ol", "frames", ...frames) : element("p", "quiet", "No stack was recorded.");
    return [element("h5", "", title), below];
  }

  neighbors(block) {
    const to = (text, other) => button(`${text} ${this.blocks.line(other)}`, "Show that block", () => this.toBlock(other));
    const [earlier, later] = [this.blocks.earlier(block), this.blocks.next[block]];
    const links = [];
    if (earlier !== null) links.push(to("in the memory of", earlier));
    if (later >= 0) links.push(to("next in this memory:", later));
    return links.length > 0 ? [element("div", "tools", ...links)] : [];
  }

  toBlock(block) {
    if (!this.isOf(this.band)(block)) this.filter(null);
    const entry = this.blocks.made(block) === null ? 2 * block + 1 : 2 * block;
    this.choose(this.entries.indexOf(entry), { block });
  }
}
