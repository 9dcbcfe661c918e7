// The story of one rank, by default the worst: its chart, its facts, what happened, and what to do about it.

import { actionButton, endRun, requestSnapshot } from "./actions.js";
import { $, Rows, attribute, element, show, text, tone, words } from "./dom.js";
import { addressWith, changeState, stateOf } from "./address.js";
import { Chart } from "./chart.js";
import { canSnapshot, commandsOf } from "./commands.js";
import { eventsOf, factsOf } from "./facts.js";
import { isKnown, number, timeLeft } from "./format.js";
import { badges, gauge } from "./parts.js";
import { asked, rankPath, runPath, windowsPath } from "./past.js";
import { besideShown, rankShown } from "./rank_chart.js";
import { recorded } from "./recorded.js";
import { activity, rankLink } from "./rank_words.js";
import { runChart } from "./run_chart.js";
import { PENDING } from "./severity.js";
import { recall } from "./sparks.js";

const CHART_PX = 243;
const HOST_PX = 96;
const EVENTS = 6;
const RANK_EVERY_MS = 2000;
const RUN_EVERY_MS = 5000;

export function storySection() {
  const chart = new Chart($("story-chart"), { height: CHART_PX, zoomed: (isZoomed) => show($("story-unzoom"), isZoomed) });
  const host = new Chart($("story-host"), { height: HOST_PX });
  const blocks = new Chart($("story-blocks"), { height: HOST_PX, say: number });
  const drawRun = runChart(CHART_PX, (rank) => (location.hash = addressWith({ run: shown.run, rank })));
  const drawBadges = badges($("story-badges"));
  const facts = new Rows($("story-facts"), makeFact, updateFact);
  const events = new Rows($("story-events"), () => ({ node: element("li") }), ({ node }, { words: line }) => text(node, line));
  const commands = new Rows($("story-commands"), makeCommand, updateCommand);
  const [snapshot, end] = [actionButton("Request a snapshot…", () => requestSnapshot(shown)), actionButton("End the run…", () => endRun(shown))];
  if (snapshot) $("story-actions").append(snapshot, end);
  let shown = null;
  $("story-unzoom").addEventListener("click", () => chart.unzoom());
  $("story-scale").addEventListener("click", () => {
    changeState({ scale: $("story-scale").dataset.next });
    again();
  });
  addEventListener("keydown", (event) => {
    const step = { "[": -1, "]": 1 }[event.key];
    if (!step || event.target.closest("input, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    $(step < 0 ? "story-previous" : "story-next").click();
  });

  let last = null;
  const again = () => draw(last);
  return draw;

  function draw(view) {
    last = view;
    const { rank, isChosen } = chosen(view);
    show($("story"), Boolean(rank));
    if (!rank) return;
    if (shown && (shown.run !== rank.run || shown.rank !== rank.rank)) chart.unzoom();
    shown = rank;
    const past = asked(rankPath(rank), RANK_EVERY_MS, again);
    const tests = asked(windowsPath(rank), RANK_EVERY_MS, again);
    const run = asked(runPath(rank.run), RUN_EVERY_MS, again);
    drawHead(rank, view, isChosen);
    drawBadges(rank.findings, rank.pending, activity(rank));
    if (past) drawCharts({ chart, host, blocks }, rank, past);
    // A file has no space for the past of any number of ranks.
    if (recorded) show($("story-chart"), Boolean(past));
    if (recorded && !past) text($("story-what"), "its memory over time is not in this file");
    if (run) recall(run, (time) => view.now - time);
    if (run) drawRun(run, view.ranks.filter((of) => of.run === rank.run), rank.rank);
    facts.set(factsOf(rank, tests, view), ({ term }) => term);
    if (past) {
      const { lines, more } = eventsOf(past, EVENTS);
      const items = lines.map(({ time, words: line }, idx) => ({ key: `${time} ${line} ${idx}`, words: `${clock(time)} · ${line}` }));
      events.set(more ? [...items, { key: "more", words: more }] : items, ({ key }) => key);
      show($("story-past"), lines.length > 0);
    }
    if (snapshot) drawActions(rank, view);
    const pod = view.status.device_pods.find(({ uuid }) => uuid === rank.device);
    commands.set(commandsOf(rank, pod).map(([what, command]) => ({ what, command })), ({ what }) => what);
  }

  function drawActions(rank, { ranks }) {
    show(snapshot, canSnapshot(rank));
    show(end, ranks.some((of) => of.run === rank.run && !of.end));
    show($("story-actions"), !snapshot.hidden || !end.hidden);
  }
}

const clock = (time) => new Date(1000 * time).toLocaleTimeString([], { hour12: false });

/** The rank of the address, else the worst. */
function chosen({ ranks, findings }) {
  const [run, rank] = [stateOf("run"), stateOf("rank")];
  const own = ranks.find((of) => of.run === run && String(of.rank) === rank);
  if (own) return { rank: own, isChosen: true };
  const first = findings.find((finding) => isKnown(finding.run));
  const worst = first && ranks.find((of) => of.run === first.run && of.rank === first.rank);
  const next = worst ?? [...ranks].sort((a, b) => b.level - a.level || !!a.end - !!b.end || timeLeft(a) - timeLeft(b))[0];
  return { rank: next, isChosen: false };
}

function drawHead(rank, { ranks, runs }, isChosen) {
  const of = runs.length > 1 ? ` of run ${rank.run}` : "";
  tone($("story-panel"), rank.level === 0 && rank.pending ? PENDING : rank.level, "panel story");
  text($("story-head"), `Rank ${rank.rank}${of}`);
  text($("story-what"), isChosen ? "" : rank.level > 0 ? "the worst rank" : "");
  show($("story-worst"), isChosen);
  attribute($("story-worst"), "href", addressWith({ run: "", rank: "" }));
  const all = ranks.filter(({ run }) => run === rank.run);
  const idx = all.findIndex((other) => other.rank === rank.rank);
  for (const [id, step] of [["story-previous", -1], ["story-next", 1]]) {
    const other = all[(idx + step + all.length) % all.length];
    attribute($(id), "href", rankLink(other));
    show($(id), all.length > 1);
  }
}

function drawCharts({ chart, ...beside }, rank, past) {
  const drawn = rankShown(rank, past, stateOf("scale"));
  chart.draw(drawn);
  const isLive = drawn.scale === "live";
  const button = $("story-scale");
  text(button, isLive ? "Show up to the capacity" : "Zoom to live memory");
  button.dataset.next = isLive ? "capacity" : "live";
  for (const [column, of] of Object.entries(beside)) {
    const shown = besideShown(rank, past, column);
    show($(`story-${column}`), Boolean(shown));
    if (shown) of.draw(shown);
  }
}

function makeFact() {
  const [term, sentence, link, list] = [element("dt"), element("span"), element("a"), element("ol", "mono")];
  const fold = element("details", "", element("summary", "", "Stack"), list);
  const value = element("dd", "", sentence, " ", link);
  const drawGauge = gauge(value, "fill");
  value.append(fold);
  return { node: element("div", "", term, value), term, value, sentence, link, list, fold, drawGauge, bar: value.querySelector(".gauge") };
}

function updateFact(row, fact) {
  text(row.term, fact.term);
  words(row.sentence, fact.sentence);
  show(row.link, Boolean(fact.link));
  if (fact.link) {
    text(row.link, fact.link.words);
    attribute(row.link, "href", fact.link.path);
  }
  show(row.bar, Boolean(fact.gauge));
  if (fact.gauge) row.drawGauge(fact.gauge.ratio, fact.gauge.words, 0);
  const lines = fact.lines ?? [];
  show(row.fold, lines.length > 1);
  const said = lines.join("\n");
  if (row.said === said) return;
  row.said = said;
  row.list.replaceChildren(...lines.map((line) => element("li", "", line)));
}

function makeCommand() {
  const [what, code, button] = [element("p"), element("code"), element("button", "copy", "Copy")];
  button.type = "button";
  const box = element("pre", "", code);
  // It scrolls.
  box.tabIndex = 0;
  const row = { node: element("li", "", what, box, button), what, code, button };
  button.addEventListener("click", () => copy(row));
  return row;
}

function updateCommand(row, { what, command }) {
  text(row.what, what);
  text(row.code, command);
  attribute(row.button, "aria-label", `Copy: ${what}`);
}

/** Copies a command, or selects it where the browser does not let a page copy. */
async function copy({ code, button }) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    text(button, "Copied");
  } catch {
    getSelection().selectAllChildren(code);
    text(button, "Selected");
  }
  setTimeout(() => text(button, "Copy"), 2000);
}
