// A headless Chromium, driven by the playwright-core that tests/ops/install.sh puts into target/tools/npm.
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

const npm = fileURLToPath(new URL("../../target/tools/npm/x.js", import.meta.url));
const { chromium } = createRequire(npm)("playwright-core");

export function launch() {
  const args = ["--no-sandbox", "--disable-background-networking", "--disable-gpu"];
  return chromium.launch({ executablePath: "/usr/bin/chromium", args });
}

/** Runs every check, prints those that do not hold, and ends the process: with 1 if there are any. */
export async function run(browser, checks) {
  let nFailed = 0;
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check();
    } catch (error) {
      nFailed += 1;
      console.error(`${name}: ${error.message}`);
    }
  }
  await browser.close();
  process.exit(nFailed === 0 ? 0 : 1);
}
