// Measures an update of the page at 8 and at 1,024 ranks in Chromium, next to what it writes: page.mjs BINARY
//
// The check of tests/ops/page_story.mjs that counts the elements prints the milliseconds, too.
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";

import { startExporter } from "../tests/ops/browser.mjs";

const { exporter, url } = await startExporter(process.argv[2], ["serve", "--no-nvml"]);
const script = fileURLToPath(new URL("../tests/ops/page_story.mjs", import.meta.url));
const { status } = spawnSync("node", [script, url], { env: { ...process.env, CHECK: "in sight" }, stdio: "inherit" });
exporter.kill();
process.exitCode = status ?? 1;
