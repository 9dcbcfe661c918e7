// Tables as wide as their box: columns that do not fit are left out, the least important first, and named below.

import { attribute, element, show, text } from "./dom.js";

/**
 * Fits a table into its box. A head with `data-drop` may be left out, the lowest number first; the others stay, and the
 * box scrolls if even they do not fit. One with 0 says what stands elsewhere, and is not missed. A button shows all columns.
 */
export class Fitted {
  constructor(tbody, redraw) {
    this.table = tbody.closest("table");
    this.tbody = tbody;
    this.box = tbody.closest(".box");
    this.heads = [...this.table.querySelectorAll("thead th")];
    this.out = new Set();
    this.isWhole = false;
    this.shape = "";
    [this.words, this.button] = [element("span"), element("button", "link")];
    this.button.type = "button";
    this.note = element("p", "quiet columns", this.words, this.button);
    this.note.hidden = true;
    this.box.after(this.note);
    this.button.addEventListener("click", () => {
      this.isWhole = !this.isWhole;
      this.shape = "";
      redraw();
    });
    // The width is read at the next fit; a hidden tab draws when it is seen again.
    addEventListener("resize", redraw);
  }

  /** Leaves out what does not fit. What is out stays out until the box or the `shape` of the content changes. */
  fit(shape) {
    const seen = `${shape} ${this.box.clientWidth}`;
    if (seen !== this.shape) this.out.clear();
    this.shape = seen;
    this.apply();
    if (!this.isWhole) {
      for (const head of this.droppable()) {
        if (this.table.scrollWidth <= this.box.clientWidth) break;
        this.out.add(head);
        this.apply();
      }
    }
    this.tell();
  }

  /** The heads that may still be left out, the least important first. */
  droppable() {
    const may = this.heads.filter((head) => head.dataset.drop && !this.out.has(head));
    return may.sort((a, b) => Number(a.dataset.drop) - Number(b.dataset.drop));
  }

  apply() {
    for (const row of [...this.table.tHead.rows, ...this.tbody.rows]) {
      for (const [idx, head] of this.heads.entries()) show(row.cells[idx], !this.out.has(head));
    }
  }

  tell() {
    // What 0 may drop says nothing new.
    const names = this.heads.filter((head) => this.out.has(head) && head.dataset.drop !== "0").map((head) => head.textContent);
    text(this.words, names.length > 0 ? `No space for: ${names.join(", ")}. ` : "");
    text(this.button, this.isWhole ? "Fit the columns to the window" : "Show all columns");
    attribute(this.button, "aria-pressed", String(this.isWhole));
    show(this.note, names.length > 0 || this.isWhole);
  }
}
