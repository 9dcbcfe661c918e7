// Changes to the document. Only what differs is written, so that selections and scroll positions outlive an update.

export const $ = (id) => document.getElementById(id);

export function text(node, value, title) {
  const only = node.firstChild;
  if (!only) node.append(value);
  else if (only.data !== value) only.data = value;
  if (title !== undefined) hint(node, title);
}

/** Writes a sentence, or parts of one, in which what stands between backticks is code. What matters of it is a part `{ strong }`. */
export function words(node, sentence) {
  const said = JSON.stringify(sentence);
  if (node.said === said) return;
  node.said = said;
  const nodes = [sentence].flat().flatMap((part) => (typeof part === "string" ? coded(part) : element("b", "", ...coded(part.strong))));
  node.replaceChildren(...nodes);
}

function coded(sentence) {
  // No line ends within a quantity or a duration, and a minus is that of other figures.
  const joined = sentence.replace(/([\dnhd]) (?=(\d+ )?([KMGT]?i?B|min|[dhs])\b)/g, "$1\u00a0");
  const parts = joined.replace(/(?<![^ (])-(?=[\d.]+[%\u00a0])/g, "\u2212").split("`");
  // A backtick without its partner is one of the text.
  const rest = parts.length % 2 === 0 ? `\`${parts.pop()}` : "";
  return [...parts.map((part, idx) => (idx % 2 === 1 ? element("code", "", part) : part)), rest];
}

/** The same sentence where only plain text can stand. */
export const plainly = (sentence) => sentence.replaceAll("`", "");

export function attribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

export function hint(node, value) {
  if (node.title !== value) node.title = value;
}

/** Gives `node` the class of a level in addition to those of `extra`; `null` is none. */
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

/** Makes a `tr` with a cell for each class name; the first is its header. */
export function tableRow(...classes) {
  const cells = classes.map((name, idx) => element(idx === 0 ? "th" : "td", name));
  cells[0].scope = "row";
  return { node: element("tr", "", ...cells), cells };
}

/** Keeps one child of `parent` for each item, in order. */
export class Rows {
  constructor(parent, make, update) {
    Object.assign(this, { parent, make, update, rows: new Map() });
  }

  /** Shows `items`, told apart by `key`; `view` is passed on to `update`. */
  set(items, key, view) {
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
      this.update(row, item, view);
    }
  }

  /** Calls `visit` with each row's node and its place. */
  each(visit) {
    [...this.parent.children].forEach(visit);
  }

  /** The height of a row, 0 without one. */
  height() {
    return this.parent.firstElementChild?.getBoundingClientRect().height ?? 0;
  }
}
