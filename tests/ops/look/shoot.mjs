// Serves the app by Vite and takes a picture of each dashboard: shoot.mjs DUMP DASHBOARDS_FOLDER OUT_FOLDER
import { cpSync, mkdirSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { createServer } from "vite";

const [dump, dashboards, out] = process.argv.slice(2);
const root = process.cwd();
mkdirSync(join(root, "public/dashboards"), { recursive: true });
cpSync(dump, join(root, "public/dump.json"));
const names = readdirSync(dashboards).filter((name) => name.endsWith(".json"));
for (const name of names) cpSync(join(dashboards, name), join(root, "public/dashboards", name));

const server = await createServer({ root, logLevel: "error", server: { port: 0, host: "127.0.0.1" }, define: { "process.env": {} } });
await server.listen();
const { port } = server.httpServer.address();
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-background-networking", "--disable-gpu"] });
let problems = 0;
for (const name of names) {
  const page = await browser.newPage({ viewport: { width: 1632, height: 900 } });
  page.on("pageerror", (error) => { problems += 1; console.error(`${name}: ${error.message}`); });
  await page.goto(`http://127.0.0.1:${port}/?d=${name.replace(".json", "")}`, { timeout: 180000 });
  await page.waitForSelector("canvas", { timeout: 180000 });
  await page.waitForLoadState("networkidle");
  await page.screenshot({ path: join(out, name.replace(".json", ".png")), fullPage: true });
  await page.close();
}
await browser.close();
await server.close();
process.exit(problems ? 1 : 0);
