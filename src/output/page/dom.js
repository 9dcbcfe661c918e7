// Elements. Only what differs is changed: selections and scroll positions outlive an update.

import { LEVELS, isKnown, plural } from "./format.js";

export const $ = (id) => document.getElementById(id);

export function text(node, value, title) {
  const only = node.firstChild;
  if (!only) node.append(value);
  else if (only.data !== value) only.data = value;
  if (title !== undefined) hint(node, title);
}

export function attribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

export function hint(node, value) {
  if (node.title !== value) node.title = value;
}

export function tone(node, level, extra = "") {
  const name = `${extra}${level === null ? "" : ` level-${level}`}`.trim();
  if (node.className !== name) node.className = name;
}

export function show(node, isShown) {
  if (node.hidden === isShown) node.hidden = !isShown;
}

export function element(name, className = "", ...children) {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

/** Keeps one child of `parent` for each item, in order. */
export class Rows {
  constructor(parent, make, update) {
    Object.assign(this, { parent, make, update, rows: new Map() });
  }

  set(items, key) {
    const gone = new Set(this.rows.keys());
    items.forEach((item) => gone.delete(key(item)));
    for (const name of gone) {
      this.rows.get(name).node.remove();
      this.rows.delete(name);
    }
    let next = this.parent.firstChild;
    for (const item of items) {
      let row = this.rows.get(key(item));
      if (!row) {
        row = this.make();
        this.rows.set(key(item), row);
      }
      if (row.node === next) next = next.nextSibling;
      // One row that left its place is moved later, instead of all the rows behind it now.
      else if (next && row.node === next.nextSibling) next = row.node.nextSibling;
      else this.parent.insertBefore(row.node, next);
      this.update(row, item);
    }
  }
}

/** Rows of which the first `limit` are shown until a button asks for all. */
export class Capped {
  constructor(rows, button, limit, noun) {
    Object.assign(this, { rows, button, limit, noun, isWhole: false, items: [], key: null });
    button.addEventListener("click", () => {
      this.isWhole = !this.isWhole;
      this.set(this.items, this.key);
    });
  }

  set(items, key) {
    Object.assign(this, { items, key });
    this.rows.set(this.isWhole ? items : items.slice(0, this.limit), key);
    show(this.button, items.length > this.limit);
    const label = this.isWhole ? `Show the first ${this.limit}` : `Show all ${plural(items.length, this.noun)}`;
    text(this.button, label);
  }
}

export function mark() {
  const node = element("span", "mark");
  node.setAttribute("aria-hidden", "true");
  return node;
}

export function badges(parent) {
  return new Rows(
    parent,
    () => {
      const label = element("span");
      const severity = element("span", "unseen");
      return { node: element("span", "badge", mark(), severity, label), label, severity };
    },
    (row, finding) => {
      tone(row.node, LEVELS[finding.severity], "badge");
      text(row.severity, `${finding.severity}: `);
      text(row.label, finding.status);
      hint(row.node, `${finding.severity}: ${finding.sentence}`);
    },
  );
}

export function gauge(parent, className = "") {
  const bar = element("i");
  const track = element("span", "track", bar);
  const label = element("span");
  track.setAttribute("aria-hidden", "true");
  const node = element("div", "gauge", track, label);
  parent.append(node);
  return (ratio, words, level) => {
    tone(node, level || null, `gauge ${className}`.trim());
    const width = isKnown(ratio) ? `${(100 * Math.min(Math.max(ratio, 0), 1)).toFixed(1)}%` : "0";
    if (bar.style.width !== width) bar.style.width = width;
    text(label, words);
  };
}

/** A `tr` with a cell for each class name; the first is its header. */
export function tableRow(...classes) {
  const cells = classes.map((name, idx) => element(idx === 0 ? "th" : "td", name));
  cells[0].scope = "row";
  return { node: element("tr", "", ...cells), cells };
}
