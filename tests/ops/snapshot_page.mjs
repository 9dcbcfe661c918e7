// Reads documents of `stepmem snapshot show --html` in a browser: snapshot_page.mjs LEAK OOM HOSTILE
//
// LEAK and OOM are documents of a leaking window and of one that ran out of memory. HOSTILE is the document of a snapshot whose names are
// markup that sets `window.taken`. Prints what does not hold and exits with 1.
import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

import { launch, run } from "./browser.mjs";

const DEADLINE_MS = 300_000;
const [leak, oom, hostile] = process.argv.slice(2).map((path) => pathToFileURL(path).href);
const browser = await launch();

/** Opens a document; collects what it complains about and what it asks for. */
async function open(url, options = {}) {
  const page = await browser.newPage({ viewport: { width: 1300, height: 900 }, ...options });
  page.setDefaultTimeout(DEADLINE_MS);
  const seen = { errors: [], requests: [] };
  page.on("pageerror", (error) => seen.errors.push(error.message));
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) seen.errors.push(message.text());
  });
  page.on("request", (request) => seen.requests.push(request.url()));
  await page.goto(url);
  if (options.javaScriptEnabled !== false) {
    await page.waitForSelector(".timeline .now b");
    await page.waitForSelector(".events .list .row");
  }
  return { page, seen, canvas: page.locator("canvas.over").first() };
}

const said = (page) => page.locator(".timeline .now").first().innerText();
const range = (page) => page.locator(".range").first().innerText();
const named = (page) => page.locator(".detail h4").first().innerText();

/** How many colors a canvas shows, and the one in its corner. */
function colors(page, selector) {
  return page.locator(selector).first().evaluate((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const counts = new Map();
    for (let at = 0; at < data.length; at += 4) {
      const key = data.slice(at, at + 4).join();
      counts.set(key, (counts.get(key) ?? 0) + 1);
    }
    return [...counts.values()].filter((n) => n > 200).length;
  });
}

async function holds({ page, seen }, url) {
  assert.deepEqual(seen.errors, []);
  assert.deepEqual(seen.requests.filter((asked) => !asked.startsWith("data:")), [url], "it asks for nothing but itself");
  await page.close();
}

const checks = {
  async "a leaking window shows its verdict, its bands and its segments"() {
    const it = await open(leak);
    assert.match(await it.page.locator(".verdict.is-bad h3").innerText(), /^Leak: 512 B a step, at train\/train\.py:123 train_step$/);
    assert.ok((await colors(it.page, "canvas.areas:not(.over)")) >= 8, "bands");
    assert.ok((await colors(it.page, "canvas.map")) >= 5, "segments");
    assert.match(await said(it.page), /672 MiB active of 718 MiB reserved\s+after event 9,675 of 12,179 · step 47/);
    const last = it.page.locator(".legend button").last();
    assert.match(await last.innerText(), /train\/train\.py:123 train_step/, "the leaking line lies lowest");
    await holds(it, leak);
  },

  async "a drag zooms, the whole comes back, and the wheel alone only scrolls"() {
    const it = await open(leak);
    assert.equal(await range(it.page), "events 0 to 12,179");
    const box = await it.canvas.boundingBox();
    await it.page.mouse.move(box.x + 300, box.y + 100);
    await it.page.mouse.down();
    await it.page.mouse.move(box.x + 400, box.y + 150, { steps: 4 });
    await it.page.mouse.up();
    const [from, to] = (await range(it.page)).match(/[\d,]+/g).map((text) => Number(text.replaceAll(",", "")));
    assert.ok(from > 1000 && to < 9000 && to - from < 3000, `${from} to ${to}`);
    await it.page.mouse.wheel(0, 10);
    assert.deepEqual((await range(it.page)).match(/[\d,]+/g).map((text) => Number(text.replaceAll(",", ""))), [from, to]);
    await it.canvas.dblclick();
    assert.equal(await range(it.page), "events 0 to 12,179");
    await holds(it, leak);
  },

  async "the pointer names the band below it with its stack, a click pins it"() {
    const it = await open(leak);
    const box = await it.canvas.boundingBox();
    await it.page.mouse.move(box.x + box.width / 2, box.y + box.height * 0.55);
    assert.match(await said(it.page), /step \d+/);
    const band = await named(it.page);
    assert.match(await it.page.locator(".detail .frames").innerText(), /train\.py:\d+/);
    await it.page.mouse.down();
    await it.page.mouse.up();
    const pinned = await said(it.page);
    assert.match(pinned, /pinned/);
    await it.page.mouse.move(box.x + 100, box.y + 300);
    assert.equal(await said(it.page), pinned);
    assert.equal(await named(it.page), band);
    await holds(it, leak);
  },

  async "everything works by keyboard"() {
    const it = await open(leak);
    await it.canvas.focus();
    const before = await said(it.page);
    await it.page.keyboard.press("ArrowRight");
    const moved = await said(it.page);
    assert.notEqual(moved, before);
    await it.page.keyboard.press("p");
    assert.equal(await said(it.page), before);
    for (const key of ["+", "+", "+", "Shift+ArrowRight"]) await it.page.keyboard.press(key);
    assert.notEqual(await range(it.page), "events 0 to 12,179");
    await it.page.keyboard.press("ArrowUp");
    assert.equal(await named(it.page), "train/train.py:123 train_step");
    await it.page.keyboard.press("0");
    assert.equal(await range(it.page), "events 0 to 12,179");
    await it.page.getByRole("button", { name: "category" }).first().press("Enter");
    assert.match(await it.page.locator(".legend").innerText(), /optimizer\s+288 MiB/);
    await it.page.locator("canvas.map").focus();
    await it.page.keyboard.press("ArrowRight");
    assert.match(await it.page.locator(".segments .now").innerText(), /(live|stranded|releasable)/);
    await holds(it, leak);
  },

  async "a click on a band lists its events, and says where its block was allocated and freed"() {
    const it = await open(leak);
    const events = it.page.locator(".events").first();
    assert.match(await events.innerText(), /^8,135 events\s/);
    const box = await it.canvas.boundingBox();
    await it.page.mouse.click(box.x + box.width / 2, box.y + box.height * 0.55);
    const band = await named(it.page);
    assert.match(await events.locator(".tools").first().innerText(), /^[\d,]+ events of train\/\S+:\d+/);
    assert.equal(await events.locator(".block h4").innerText(), band);
    assert.match(await events.locator(".block").innerText(), /0x7f[\da-f]+.*Allocated: event [\d,]+.*train\.py:\d+/s);
    const chosen = events.locator('[aria-selected="true"]');
    assert.equal(await chosen.count(), 1);
    assert.ok((await chosen.innerText()).includes(band));
    assert.ok((await events.locator(".list .row").count()) < 60, "rows that are not seen are not there");
    await events.getByRole("button", { name: "all blocks" }).click();
    assert.match(await events.innerText(), /^8,135 events\s/);
    await holds(it, leak);
  },

  async "the list of events works by keyboard, and leads to the timeline"() {
    const it = await open(leak);
    const events = it.page.locator(".events").first();
    const chosen = async () => Number((await events.locator('[aria-selected="true"] span').first().innerText()).replaceAll(",", ""));
    await events.locator(".list").focus();
    await it.page.keyboard.press("ArrowDown");
    const first = await chosen();
    await it.page.keyboard.press("PageDown");
    assert.ok((await chosen()) > first);
    await it.page.keyboard.press("End");
    const last = await chosen();
    assert.ok(last > 12_000, `${last}`);
    const active = await events.locator(".list").getAttribute("aria-activedescendant");
    assert.equal(await it.page.locator(`[id="${active}"]`).getAttribute("aria-selected"), "true");
    await it.page.keyboard.press("Enter");
    const at = (await said(it.page)).match(/after event ([\d,]+) of .* pinned/);
    const shown = Number(at[1].replaceAll(",", ""));
    assert.ok(shown <= last && shown > last - 20, `${shown}: the last sample before it`);
    // A block that was freed in the window: from its free to its allocation, and back.
    await it.page.keyboard.press("ArrowLeft");
    const made = await chosen();
    assert.ok(made <= last);
    await it.page.keyboard.press("Home");
    assert.equal(await chosen(), first);
    await holds(it, leak);
  },

  async "a free is shown with what freed it, and whose memory the block took"() {
    const it = await open(leak);
    const events = it.page.locator(".events").first();
    await events.locator(".list").focus();
    let text = "";
    for (let n = 0; n < 400 && !/Freed: event .*in the memory of/s.test(text); n += 1) {
      await it.page.keyboard.press("ArrowDown");
      text = await events.locator(".block").innerText();
    }
    assert.match(text, /Freed: event [\d,]+, step \d+, freed /);
    const taken = events.locator(".block .tools button").first();
    const moment = () => events.locator(".block h5").first().innerText();
    const before = await moment();
    await taken.click();
    assert.notEqual(await moment(), before);
    await holds(it, leak);
  },

  async "a failed allocation is marked, explained, and has its segments"() {
    const it = await open(oom);
    assert.match(await it.page.locator(".verdict.is-bad").innerText(), /Out of memory\s+64\.0 MiB requested at event 2,485.*\s+Fragmentation/);
    await it.page.getByRole("button", { name: "when memory ran out" }).click();
    assert.match(await it.page.locator(".key").innerText(), /1\.89 GiB stranded/);
    await holds(it, oom);
  },

  async "light and dark are the reader's choice, at once"() {
    const it = await open(leak, { colorScheme: "light" });
    const look = () => it.page.evaluate(() => ({
      ground: getComputedStyle(document.body).backgroundColor,
      picture: document.querySelector("canvas.areas").toDataURL(),
    }));
    const light = await look();
    await it.page.emulateMedia({ colorScheme: "dark" });
    await it.page.waitForFunction((picture) => document.querySelector("canvas.areas").toDataURL() !== picture, light.picture);
    assert.notEqual((await look()).ground, light.ground);
    await holds(it, leak);
  },

  async "names in a file are text, whatever they look like"() {
    const it = await open(hostile);
    assert.equal(await it.page.evaluate(() => window.taken), undefined);
    assert.equal(await it.page.locator("img, iframe, object, b:not(.now b)").count(), 0);
    assert.equal(await it.page.locator("script").count(), 3);
    await it.canvas.focus();
    await it.page.keyboard.press("ArrowUp");
    assert.match(await it.page.locator(".detail").innerText(), /<\/script><script>/);
    assert.match(await it.page.innerText("h1"), /<b>/);
    assert.equal(await it.page.evaluate(() => window.taken), undefined);
    await holds(it, hostile);
  },

  async "without scripts the tables are there"() {
    const it = await open(leak, { javaScriptEnabled: false });
    const text = await it.page.innerText("main");
    assert.match(text, /Who holds the memory at the end \(580 MiB\)/);
    assert.match(text, /49\.7%\s+288 MiB\s+288 MiB\s+36\s+train\/train\.py:130 train_step/);
    await it.page.close();
  },

  async "a narrow window scrolls down only"() {
    const it = await open(leak, { viewport: { width: 400, height: 800 } });
    const { wide, seen } = await it.page.evaluate(() => ({ wide: document.documentElement.scrollWidth, seen: window.innerWidth }));
    assert.ok(wide <= seen, `${wide} of ${seen}`);
    await holds(it, leak);
  },

  async "a phone has space for the lines of code"() {
    for (const url of [leak, oom]) {
      const it = await open(url, { viewport: { width: 390, height: 800 } });
      const lines = await it.page.locator(".box td:last-child").evaluateAll((cells) => cells.map((cell) => [cell.textContent, cell.clientWidth, cell.clientHeight]));
      assert.ok(lines.length > 20);
      for (const [text, wide, high] of lines) assert.ok(wide >= 120 && high < 120, `${text}: ${wide} x ${high} px`);
      await holds(it, url);
    }
  },
};

await run(browser, checks);
