// Long tables: only the rows in sight are in the document, and only they are written.

import { Rows, attribute, element, show } from "./dom.js";

/** Tables of fewer rows are shown whole. */
const WHOLE_MAX = 64;
const MARGIN = 6;

/** Keeps the rows of a table that its box shows; `redraw` is called when others come into sight. */
export class VirtualRows {
  constructor(tbody, { make, update, redraw }) {
    this.rows = new Rows(tbody, make, update);
    this.table = tbody.closest("table");
    this.box = tbody.closest(".box");
    [this.above, this.below] = [spacer(), spacer()];
    tbody.before(this.above);
    tbody.after(this.below);
    this.height = 0;
    this.first = 0;
    this.box.addEventListener("scroll", () => this.isVirtual && this.begin() !== this.first && redraw(), { passive: true });
  }

  begin() {
    return Math.max(Math.floor(this.box.scrollTop / (this.height || 30)) - MARGIN, 0);
  }

  set(items, key, view, isAgain = false) {
    this.isVirtual = items.length > WHOLE_MAX;
    this.box.classList.toggle("is-virtual", this.isVirtual);
    attribute(this.table, "aria-rowcount", String(items.length + 1));
    const n = this.isVirtual ? Math.ceil(this.box.clientHeight / (this.height || 30)) + 2 * MARGIN : items.length;
    const first = this.isVirtual ? Math.min(this.begin(), Math.max(items.length - n, 0)) : 0;
    const shown = items.slice(first, first + n);
    this.first = first;
    this.rows.set(shown, key, view);
    this.rows.each((node, idx) => attribute(node, "aria-rowindex", String(first + idx + 2)));
    space(this.above, first * this.height);
    space(this.below, (items.length - first - shown.length) * this.height);
    const height = this.rows.height();
    if (this.isVirtual && height > 0 && height !== this.height && !isAgain) {
      this.height = height;
      this.set(items, key, view, true);
    }
  }
}

function spacer() {
  const cell = element("td");
  const node = element("tr", "", cell);
  const body = element("tbody", "spacer", node);
  body.setAttribute("aria-hidden", "true");
  return Object.assign(body, { cell });
}

function space(body, height) {
  show(body, height > 0);
  const value = `${height}px`;
  if (body.cell.style.height !== value) body.cell.style.height = value;
}
