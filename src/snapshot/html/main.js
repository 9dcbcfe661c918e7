// Draws the pictures of every device from the data in the page. The tables stand in the page itself.

import { paint } from "./colours.js";
import { Segments } from "./segments.js";
import { Timeline } from "./timeline.js";

for (const picture of JSON.parse(document.getElementById("data").textContent)) {
  const place = (kind) => document.querySelector(`[data-${kind}="${picture.device}"]`);
  if (place("timeline")) new Timeline(place("timeline"), picture);
  const colours = paint(picture.lines);
  const shades = new Map(picture.lines.map(({ name }, idx) => [name, colours[idx]]));
  if (place("segments")) new Segments(place("segments"), picture.maps, shades);
}
