// Draws a stack of bands on a canvas: areas, steps, marks, the reserved memory, the cursor.

import { color } from "./colors.js";
import { context } from "./dom.js";
import { bytes, count, ticks } from "./format.js";

const LEFT = 68;
const RIGHT = 10;
const TOP = 18;
const BOTTOM = 22;
const LABEL_WIDTH = 80;
// The reserved memory is in the picture unless it would press everything else flat.
const RESERVED_RATIO_MAX = 1.6;

/** How events and bytes lie on a canvas. */
class Plane {
  constructor({ width, height }, view, most) {
    Object.assign(this, { view, most, left: LEFT, top: TOP });
    this.width = Math.max(width - LEFT - RIGHT, 1);
    this.height = Math.max(height - TOP - BOTTOM, 1);
  }

  x(event) {
    return this.left + ((event - this.view.from) / this.view.width) * this.width;
  }

  y(value) {
    return this.top + this.height * (1 - value / this.most);
  }

  event(x) {
    return this.view.from + ((x - this.left) / this.width) * this.view.width;
  }

  value(y) {
    return (1 - (y - this.top) / this.height) * this.most;
  }
}

/** Draws everything and returns the plane it lies on. */
export function draw(canvas, scene) {
  const { stack, view, reserved } = scene;
  const { ctx, ...size } = context(canvas);
  const most = stack.most(view.from, view.to);
  const ceiling = most > 0 ? most : 1;
  const taken = mostOf(reserved, stack, view);
  const plane = new Plane(size, view, 1.04 * (taken <= RESERVED_RATIO_MAX * ceiling ? Math.max(taken, ceiling) : ceiling));
  grid(ctx, plane);
  ctx.save();
  ctx.beginPath();
  ctx.rect(plane.left, plane.top, plane.width, plane.height);
  ctx.clip();
  stack.bands.forEach((_, band) => area(ctx, plane, scene, band));
  line(ctx, plane, stack, reserved);
  ctx.restore();
  steps(ctx, plane, scene.steps);
  scene.marks.forEach((mark) => flag(ctx, plane, mark));
  return plane;
}

function mostOf(reserved, stack, view) {
  const [first, last] = [stack.sampleAt(view.from), stack.sampleAt(view.to)];
  let most = 0;
  for (let sample = first; sample <= last; sample += 1) most = Math.max(most, reserved[sample] ?? 0);
  return most;
}

function grid(ctx, plane) {
  ctx.strokeStyle = color("--line");
  ctx.fillStyle = color("--quiet");
  ctx.textAlign = "right";
  ctx.textBaseline = "middle";
  for (const value of ticks(plane.most, 6)) {
    const y = Math.round(plane.y(value)) + 0.5;
    ctx.beginPath();
    ctx.moveTo(plane.left, y);
    ctx.lineTo(plane.left + plane.width, y);
    ctx.stroke();
    ctx.fillText(bytes(value), plane.left - 6, y);
  }
}

/** Follows the edge of a sum from sample to sample; what is held stays until the next one. */
function edge(ctx, plane, stack, values, isBackward) {
  const { view } = plane;
  const [first, last] = [stack.sampleAt(view.from), stack.sampleAt(view.to)];
  const from = (sample) => plane.x(Math.max(stack.states[sample], view.from));
  const to = (sample) => plane.x(Math.min(stack.states[sample + 1] ?? view.last, view.to));
  const y = (sample) => plane.y(values ? values[sample] : 0);
  if (isBackward) {
    for (let sample = last; sample >= first; sample -= 1) {
      ctx.lineTo(to(sample), y(sample));
      ctx.lineTo(from(sample), y(sample));
    }
  } else {
    for (let sample = first; sample <= last; sample += 1) {
      ctx.lineTo(from(sample), y(sample));
      ctx.lineTo(to(sample), y(sample));
    }
  }
}

function area(ctx, plane, { stack, colors, chosen }, band) {
  ctx.beginPath();
  edge(ctx, plane, stack, stack.tops[band], false);
  edge(ctx, plane, stack, stack.tops[band - 1], true);
  ctx.closePath();
  ctx.globalAlpha = chosen === null || chosen === band ? 1 : 0.35;
  ctx.fillStyle = color(colors[band]);
  ctx.fill();
  ctx.globalAlpha = 1;
}

function line(ctx, plane, stack, values) {
  ctx.beginPath();
  edge(ctx, plane, stack, values, false);
  ctx.strokeStyle = color("--text");
  ctx.setLineDash([5, 4]);
  ctx.stroke();
  ctx.setLineDash([]);
}

/** Marks where steps begin; numbers as many as fit. */
function steps(ctx, plane, all) {
  const seen = all.filter(([event]) => event >= plane.view.from && event <= plane.view.to);
  const every = Math.max(Math.ceil((seen.length * LABEL_WIDTH) / plane.width), 1);
  ctx.textAlign = "left";
  ctx.textBaseline = "top";
  seen.forEach(([event, number], idx) => {
    const x = Math.round(plane.x(event)) + 0.5;
    const isNamed = idx % every === 0;
    ctx.strokeStyle = color(isNamed ? "--quiet" : "--line");
    ctx.beginPath();
    ctx.moveTo(x, plane.top + plane.height);
    ctx.lineTo(x, plane.top + plane.height + (isNamed ? 6 : 3));
    ctx.stroke();
    ctx.fillStyle = color("--quiet");
    if (isNamed && x + LABEL_WIDTH < plane.left + plane.width + RIGHT) ctx.fillText(`step ${count(number)}`, x + 2, plane.top + plane.height + 7);
  });
  if (seen.length === 0) {
    const y = plane.top + plane.height + 7;
    ctx.fillStyle = color("--quiet");
    ctx.fillText(`event ${count(Math.round(plane.view.from))}`, plane.left, y);
    ctx.textAlign = "right";
    ctx.fillText(`event ${count(Math.round(plane.view.to))}`, plane.left + plane.width, y);
  }
}

function flag(ctx, plane, { event, text, tone }) {
  if (event < plane.view.from || event > plane.view.to) return;
  const x = Math.round(plane.x(event)) + 0.5;
  ctx.strokeStyle = ctx.fillStyle = color(tone);
  ctx.beginPath();
  ctx.moveTo(x, plane.top - 4);
  ctx.lineTo(x, plane.top + plane.height);
  ctx.stroke();
  const isLate = x > plane.left + plane.width - ctx.measureText(text).width - 8;
  ctx.textAlign = isLate ? "right" : "left";
  ctx.textBaseline = "bottom";
  ctx.fillText(text, x + (isLate ? -3 : 3), plane.top - 3);
}

/** Draws what follows the pointer and the keys over the picture. */
export function drawCursor(canvas, plane, { cursor, isPinned, selection }) {
  const { ctx } = context(canvas);
  if (selection) {
    const [from, to] = selection.map((event) => plane.x(event));
    ctx.fillStyle = color("--selection");
    ctx.fillRect(Math.min(from, to), plane.top, Math.abs(to - from), plane.height);
  }
  if (cursor === null || cursor < plane.view.from || cursor > plane.view.to) return;
  ctx.strokeStyle = color("--text");
  ctx.lineWidth = isPinned ? 2 : 1;
  ctx.beginPath();
  ctx.moveTo(plane.x(cursor), plane.top);
  ctx.lineTo(plane.x(cursor), plane.top + plane.height);
  ctx.stroke();
}

/** Draws the whole window small, with the part that is looked at. */
export function drawOverview(canvas, { stack, view }) {
  const { ctx, width, height } = context(canvas);
  const most = stack.most(0, view.last) || 1;
  const x = (event) => LEFT + (event / view.last) * (width - LEFT - RIGHT);
  ctx.beginPath();
  ctx.moveTo(x(0), height);
  stack.states.forEach((state, sample) => {
    const y = height * (1 - (0.95 * stack.total[sample]) / most);
    ctx.lineTo(x(state), y);
    ctx.lineTo(x(stack.states[sample + 1] ?? view.last), y);
  });
  ctx.lineTo(x(view.last), height);
  ctx.fillStyle = color("--rest");
  ctx.fill();
  ctx.fillStyle = color("--selection");
  ctx.fillRect(x(view.from), 0, Math.max(x(view.to) - x(view.from), 2), height);
  ctx.strokeStyle = color("--link");
  ctx.strokeRect(x(view.from) + 0.5, 0.5, Math.max(x(view.to) - x(view.from) - 1, 2), height - 1);
}
