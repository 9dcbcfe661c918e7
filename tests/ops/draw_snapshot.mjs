// Draws a document of `stepmem snapshot … --html`, with a band chosen: draw_snapshot.mjs DOCUMENT PICTURE [light|dark] [HEIGHT]
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

import { launch } from "./browser.mjs";

const [document, picture, colorScheme = "light", height = "1000"] = process.argv.slice(2);
const browser = await launch();
try {
  const page = await browser.newPage({ viewport: { width: 1300, height: Number(height) }, colorScheme });
  await page.goto(pathToFileURL(resolve(document)).href);
  const canvas = page.locator("canvas.over").first();
  if (await canvas.count()) {
    const box = await canvas.boundingBox();
    await page.mouse.move(box.x + box.width * 0.8, box.y + box.height * 0.9);
    await page.locator(".detail h4").first().waitFor();
  }
  await page.screenshot({ path: picture });
} finally {
  await browser.close();
}
