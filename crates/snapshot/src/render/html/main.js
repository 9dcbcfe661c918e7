// Draws the pictures of every device from the data in the page. The tables stand in the page itself.

import { paint } from "./colors.js";
import { Events } from "./events.js";
import { Segments } from "./segments.js";
import { Timeline } from "./timeline.js";

const place = (kind, device) => document.querySelector(`[data-${kind}="${device}"]`);
const timelines = new Map();

for (const picture of JSON.parse(document.getElementById("data").textContent)) {
  const { device } = picture;
  if (place("timeline", device)) timelines.set(device, new Timeline(place("timeline", device), picture));
  const colors = paint(picture.lines);
  const shades = new Map(picture.lines.map(({ name }, idx) => [name, colors[idx]]));
  if (place("segments", device)) new Segments(place("segments", device), picture.maps, shades);
}

// The list is long: the pictures are seen before it is read, and each device's in a task of its own.
const later = (task) => setTimeout(task, 0);
later(() => {
  for (const table of JSON.parse(document.getElementById("blocks").textContent)) {
    const timeline = timelines.get(table.device);
    const list = place("events", table.device);
    if (timeline && list) later(() => new Events(list, table, timeline));
  }
});
