// A headless Chromium, driven by the playwright-core that tests/ops/install.sh puts into target/tools/npm.
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

const npm = fileURLToPath(new URL("../../target/tools/npm/x.js", import.meta.url));
const { chromium } = createRequire(npm)("playwright-core");

export function launch() {
  const args = ["--no-sandbox", "--disable-background-networking", "--disable-gpu"];
  return chromium.launch({ executablePath: "/usr/bin/chromium", args });
}
