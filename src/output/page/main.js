// Polls the status of the exporter and draws it, section by section. Sections ask for the past themselves.

import { devicesSection } from "./devices.js";
import { $, show, text } from "./dom.js";
import { exporterSection } from "./exporter.js";
import { findingsSection } from "./findings.js";
import { date, duration } from "./format.js";
import { recorded } from "./recorded.js";
import { remember } from "./sparks.js";
import { processesSection } from "./processes.js";
import { ranksSection } from "./ranks.js";
import { runsSection } from "./runs.js";
import { storySection } from "./story.js";
import { titleOf, verdictSection } from "./verdict.js";
import { viewOf } from "./view.js";

const POLL_MS = 1000;
const ANSWER_WITHIN_MS = 5000;

const drawVerdict = verdictSection();
const sections = [
  storySection(),
  findingsSection(draw),
  runsSection(draw),
  ranksSection(draw),
  processesSection(draw),
  devicesSection(draw),
  exporterSection(),
];

let last = null;
let failedSince = null;

function draw() {
  if (!last) return;
  const view = viewOf(last);
  const said = drawVerdict(view);
  for (const section of sections) {
    try {
      section(view);
    } catch (error) {
      // The others are drawn nevertheless.
      reportError(error);
    }
  }
  if (failedSince !== null) return;
  text($("said"), said);
  const title = titleOf(view);
  if (document.title !== title) document.title = title;
}

function answered(status) {
  last = status;
  failedSince = null;
  remember(status);
  live(recorded ? `as of ${date(status.time, { timeZoneName: "short" })}` : "live", !recorded);
  show($("unanswered"), false);
  document.body.classList.remove("is-stale");
}

function unanswered(error) {
  failedSince ??= Date.now();
  const when = new Date(failedSince).toLocaleTimeString("sv");
  const over = last?.exporter.ends_with_command ? " It ends with its command: see stepmem summary logs." : "";
  const kept = last ? `${over} Its last answer, of ${date(last.time)}, is below.` : "";
  const why = error.name === "TimeoutError" ? "timed out" : error.message;
  const silence = duration((Date.now() - failedSince) / 1000);
  text($("unanswered"), `The exporter has not answered since ${when} (${silence}): ${why}.${kept}`);
  text($("said"), `The exporter has not answered since ${when}`);
  document.title = "no answer · stepmem";
  live("no answer", false);
  show($("unanswered"), true);
  document.body.classList.add("is-stale");
}

function live(words, isLive) {
  text($("live"), words);
  $("live").classList.toggle("is-live", isLive);
  show($("live"), true);
}

let timer = 0;
let isPolling = false;

async function poll() {
  clearTimeout(timer);
  if (isPolling) return;
  isPolling = true;
  const began = performance.now();
  try {
    const response = await fetch("api/v1/status", { cache: "no-store", signal: AbortSignal.timeout(ANSWER_WITHIN_MS) });
    if (!response.ok) throw new Error(`HTTP ${response.status}`);
    answered(await response.json());
  } catch (error) {
    unanswered(error);
  }
  try {
    draw();
  } finally {
    isPolling = false;
    // A round that took long, as with a thousand ranks on a slow line, makes the next one wait longer.
    const took = performance.now() - began;
    if (document.visibilityState === "visible") timer = setTimeout(poll, Math.max(POLL_MS - took, 2 * took));
  }
}

function attend() {
  if (document.visibilityState === "visible") return poll();
  clearTimeout(timer);
  if (last) live("paused", false);
}

// Relative, so that it also works behind a proxy that serves the page below a path.
$("metrics").setAttribute("href", document.querySelector('meta[name="telemetry-path"]').content.replace(/^\//, ""));
addEventListener("hashchange", () => {
  draw();
  $("story").scrollIntoView({ block: "nearest" });
});
if (recorded) {
  answered(recorded.status);
  draw();
} else {
  document.addEventListener("visibilitychange", attend);
  attend();
}
