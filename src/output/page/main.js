// The status page: asks the exporter once a second and shows what it answers.

import { $, show, text, tone } from "./dom.js";
import { showDevices } from "./devices.js";
import { showExporter } from "./exporter.js";
import { showFindings } from "./findings.js";
import { duration, grouped, levelOf, stamp } from "./format.js";
import { showProcesses } from "./processes.js";
import { showRanks } from "./ranks.js";
import { showRuns } from "./runs.js";
import { remember } from "./sparks.js";
import { state } from "./state.js";
import { soonerFirst, subjectKey } from "./subjects.js";
import { judge } from "./verdict.js";

const POLL_MS = 1000;
const ANSWER_WITHIN_MS = 5000;

let failedSince = null;

function curl() {
  const url = document.querySelector('meta[name="push-url"]').content;
  const record = '{"run":"demo","rank":0,"step":1,"allocated_bytes":1073741824}';
  const base = url && !url.includes("{{") ? url.replace(/\/$/, "") : "http://127.0.0.1:9478";
  const where = base.startsWith("unix:") ? `--unix-socket ${base.slice(5)} http://localhost/v1/steps` : `${base}/v1/steps`;
  return `curl -H 'content-type: application/json' -d '${record}' ${where}`;
}

function showVerdict(status, findings) {
  const [level, headline, more, said] = judge(status, findings);
  tone($("verdict"), level, "verdict");
  text($("verdict-text"), headline);
  text($("verdict-more"), more);
  show($("verdict-more"), more !== "");
  show($("push-example"), status.ranks.length === 0);
  text($("curl"), curl());
  if (failedSince === null) text($("said"), said);
  const title = level > 0 ? `${findings[0].severity}: ${findings[0].status} · stepmem` : "stepmem";
  if (document.title !== title) document.title = title;
}

function render() {
  const { status } = state;
  if (!status) return;
  const findings = [...status.findings].sort(soonerFirst);
  const ofSubject = grouped(findings, subjectKey);
  const judged = (subject) => {
    const own = ofSubject.get(subjectKey(subject)) ?? [];
    return { ...subject, findings: own, level: levelOf(own) };
  };
  const ranks = status.ranks.map(judged);
  const members = grouped(ranks, (rank) => rank.run);
  const runs = status.runs.map((run) => {
    const own = members.get(run.run) ?? [];
    return { ...run, members: own, findings: own.flatMap((rank) => rank.findings) };
  });
  const processes = (status.processes ?? []).map(judged);

  showVerdict(status, findings);
  showFindings(findings);
  showRuns(runs);
  showRanks(ranks);
  showProcesses(processes);
  showDevices(status);
  showExporter(status);
  const shown = {
    verdict: true,
    findings: findings.length > 0,
    runs: runs.length > 0,
    ranks: ranks.length > 0,
    processes: processes.length > 0,
    devices: true,
    exporter: true,
  };
  for (const [id, isShown] of Object.entries(shown)) show($(id), isShown);
}

function answered(status) {
  state.status = status;
  failedSince = null;
  remember(status);
  live("live", true);
  show($("unanswered"), false);
  document.body.classList.remove("is-stale");
}

function unanswered(error) {
  failedSince ??= Date.now();
  const when = new Date(failedSince).toLocaleTimeString();
  const kept = state.status ? ` Below is its last answer, of ${stamp(state.status.time)}.` : "";
  const why = error.name === "TimeoutError" ? "no answer in time" : error.message;
  text($("unanswered"), `The exporter has not answered since ${when} (${duration((Date.now() - failedSince) / 1000)}): ${why}.${kept}`);
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
    render();
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
  if (state.status) live("paused", false);
}

// Relative, so that it also works behind a proxy that serves the page below a path.
$("metrics").setAttribute("href", document.querySelector('meta[name="telemetry-path"]').content.replace(/^\//, ""));
$("filter").addEventListener("input", render);
document.addEventListener("visibilitychange", attend);
attend();
