// Reads documents of `stepmem snapshot diff --html` and `ranks --html` in a browser: snapshot_compared.mjs DIFF RANKS
//
// DIFF grew at train.py:126; RANKS is of a job in which rank 2 stands out and rank 4 cannot be read. Prints what does not hold and exits with 1.
import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

import { launch, run } from "./browser.mjs";

const [diff, ranks] = process.argv.slice(2).map((path) => pathToFileURL(path).href);
const browser = await launch();

/** Opens a document, has `look` look at it, and holds that it complains about nothing and asks for nothing but itself. */
async function visit(url, look, options = {}) {
  const page = await browser.newPage({ viewport: { width: 1300, height: 900 }, ...options });
  page.setDefaultTimeout(300_000);
  const [errors, requests] = [[], []];
  page.on("pageerror", (error) => errors.push(error.message));
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) errors.push(message.text());
  });
  page.on("request", (request) => requests.push(request.url()));
  await page.goto(url);
  await look(page);
  assert.deepEqual(errors, []);
  assert.deepEqual(requests.filter((asked) => !asked.startsWith("data:")), [url]);
  await page.close();
}

/** Widths and colors of the shapes of some bars, as they are drawn. */
const shapes = (page, bars) => page.locator(`${bars} rect`).evaluateAll((rects) => rects.map((rect) => ({
  width: Math.round(rect.getBoundingClientRect().width),
  fill: getComputedStyle(rect).fill,
})));

const checks = {
  "the line that grew fills its side, and its stack opens by keyboard": () => visit(diff, async (page) => {
    assert.match(await page.locator(".verdict.is-bad").innerText(), /^\+80\.0 MiB at train\/train\.py:126 train_step/);
    const row = page.locator("table.bars tbody tr").first();
    const place = await row.locator(".bar").boundingBox();
    const [growth] = await shapes(page, "table.bars tbody tr:first-child");
    assert.ok(Math.abs(growth.width - place.width / 2) < 3, `${growth.width} of ${place.width}`);
    const outer = row.getByText("train.py:210 main");
    assert.equal(await outer.isVisible(), false);
    for (let tabs = 0; tabs < 3 && !(await outer.isVisible()); tabs += 1) {
      await page.keyboard.press("Tab");
      await page.keyboard.press("Enter");
    }
    assert.equal(await outer.isVisible(), true, "Tab and Enter");
  }),

  "before and after are bars of one scale": () => visit(diff, async (page) => {
    const [before, after] = await page.locator(".stacks .bar").evaluateAll((bars) => bars.map((bar) =>
      [...bar.querySelectorAll("rect")].reduce((sum, rect) => sum + rect.getBoundingClientRect().width, 0)));
    assert.ok(after > before * 1.05, `${before} ${after}`);
    const fills = new Set((await shapes(page, ".stacks .bar")).map(({ fill }) => fill));
    assert.ok(fills.size >= 5, `${[...fills]}`);
    assert.match(await page.locator(".stacks .bar title").first().textContent(), /MiB .*\.py:\d+/);
  }),

  "the odd rank is marked, and a broken file says why": () => visit(ranks, async (page) => {
    assert.match(await page.locator(".verdict.is-bad").innerText(), /^Rank 2 stands out\s+24\.0 MiB at the end, where the median is 0 B: train\/train\.py:126/);
    const worst = page.locator("tr.is-worst");
    assert.equal(await worst.count(), 1);
    const fills = async (row) => [...new Set((await row.locator("rect").evaluateAll((all) => all.map((rect) => getComputedStyle(rect).fill))))];
    const usual = page.locator("table").last().locator("tbody tr").first();
    assert.notDeepEqual(await fills(worst), await fills(usual));
    assert.match(await page.locator("table").last().locator("tbody tr").last().innerText(), /^4\s.*JSON.*<img src=x>/s);
    assert.equal(await page.locator("img, script").count(), 0);
  }),

  "light and dark are the reader's choice": async () => {
    for (const url of [diff, ranks]) {
      const look = {};
      for (const colorScheme of ["light", "dark"]) {
        await visit(url, async (page) => {
          look[colorScheme] = [await page.evaluate(() => getComputedStyle(document.body).backgroundColor), await shapes(page, ".bar")];
        }, { colorScheme });
      }
      assert.notEqual(look.light[0], look.dark[0]);
      assert.notDeepEqual(look.light[1], look.dark[1]);
    }
  },

  "a narrow window scrolls down only": async () => {
    for (const url of [diff, ranks]) {
      await visit(url, async (page) => {
        const { wide, seen } = await page.evaluate(() => ({ wide: document.documentElement.scrollWidth, seen: window.innerWidth }));
        assert.ok(wide <= seen, `${wide} of ${seen}`);
      }, { viewport: { width: 400, height: 800 } });
    }
  },
};

await run(browser, checks);
