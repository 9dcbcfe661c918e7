// Elements of the page. Text of a file only ever becomes the text of a node.

export function element(name, className = "", ...children) {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

export function button(text, title, action) {
  const node = element("button", "", text);
  node.type = "button";
  node.title = title;
  node.addEventListener("click", action);
  return node;
}

/** A value of the page's style, which follows the reader's choice of light or dark. */
export const styled = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Fits a canvas to its place, and returns its context in the units of the page. */
export function context(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const ctx = canvas.getContext("2d");
  ctx.scale(ratio, ratio);
  ctx.clearRect(0, 0, width, height);
  ctx.font = `11px ${styled("--sans")}`;
  return { ctx, width, height };
}

/** Calls `draw` now, and whenever the place, the size or the colors of `node` change. */
export function redraw(node, draw) {
  new ResizeObserver(draw).observe(node);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}
