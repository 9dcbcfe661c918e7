// Parts that several sections show: marks, badges, gauges, and lists that a button makes whole.

import { Rows, element, hint, plainly, show, text, tone } from "./dom.js";
import { isKnown, plural } from "./format.js";
import { PENDING, levelOf } from "./severity.js";

/** Makes the shape that stands for a level in addition to its color. */
export function mark() {
  const node = element("span", "mark");
  node.setAttribute("aria-hidden", "true");
  return node;
}

/** Fills `parent` with a badge for each finding; further ones hold notes, such as what is not judged yet. */
export function badges(parent) {
  const rows = new Rows(
    parent,
    () => {
      const label = element("span");
      const severity = element("span", "unseen");
      return { node: element("span", "badge", mark(), severity, label), label, severity };
    },
    (row, badge) => {
      tone(row.node, badge.level, "badge");
      text(row.severity, badge.severity);
      text(row.label, badge.label);
      hint(row.node, badge.hint);
    },
  );
  return (findings, ...notes) => {
    const list = findings.map((finding) => ({
      key: `${finding.kind} ${finding.uuid ?? ""}`,
      level: levelOf([finding]),
      severity: `${finding.severity}: `,
      label: finding.status + (isKnown(finding.evidence.level_since_time) ? ", level" : ""),
      hint: `${finding.severity}: ${plainly(finding.sentence)}`,
    }));
    notes.forEach((note, idx) => note && list.push({ key: `note ${idx}`, level: PENDING, severity: "", ...note }));
    rows.set(list, (badge) => badge.key);
  };
}

/** Adds a bar of a ratio with words next to it. */
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

/** Colors a cell of a figure that a finding speaks of. */
export const toned = (cell, level) => tone(cell, level || null, level ? "num is-toned" : "num");

/** Rows of which the first `limit` are shown until a button asks for all. */
export class Capped {
  constructor(rows, { button, limit, noun, redraw }) {
    Object.assign(this, { rows, button, limit, noun, isWhole: false });
    button.addEventListener("click", () => {
      this.isWhole = !this.isWhole;
      redraw();
    });
  }

  set(items, key, view) {
    this.rows.set(this.isWhole ? items : items.slice(0, this.limit), key, view);
    show(this.button, items.length > this.limit);
    const label = this.isWhole ? `Show the first ${this.limit}` : `Show all ${plural(items.length, this.noun)}`;
    text(this.button, label);
  }
}
