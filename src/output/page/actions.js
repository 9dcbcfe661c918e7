// The buttons of an exporter with --web.admin: acknowledge, request a snapshot, end a run. Each asks in a dialog first. The
// token is kept in this variable and nowhere else.

import { element, show, text } from "./dom.js";
import { isKnown } from "./format.js";
import { subjectName } from "./view.js";

const HEADER = "stepmem-admin-token";
const ANSWER_WITHIN_MS = 5000;
const DURATIONS = { 3600: "an hour", 86400: "a day", 604800: "a week", 2592000: "30 days" };
const OUTCOMES = { failed: "failed", completed: "completed", oom: "out of memory" };

const hasButtons = document.querySelector('meta[name="has-buttons"]').content === "true";
let token = "";

/** A button that opens the dialog of what `action` returns then; `null` where the page has none. */
export function actionButton(words, action) {
  if (!hasButtons) return null;
  const button = element("button", "more", words);
  button.type = "button";
  button.addEventListener("click", () => ask(action()));
  return button;
}

const ofRun = (run, what) => `api/v1/runs/${encodeURIComponent(run)}/${what}`;

/** Lowers a finding to info. */
export function acknowledge(finding, view) {
  const { run, rank, uuid, pid, kind, status } = finding;
  const subject = isKnown(run) ? { rank } : isKnown(pid) ? { pid } : {};
  return {
    verb: "Acknowledge",
    title: `Acknowledge ${status} on ${subjectName(finding, view.shortName)}`,
    note: "Until then it is info, and pages nobody.",
    fields: [field("Reason", input("text", { required: true, maxLength: 256 })), field("For", select(DURATIONS, "86400"))],
    path: isKnown(run) ? ofRun(run, "ack") : `api/v1/devices/${encodeURIComponent(uuid)}/ack`,
    body: ([reason, seconds]) => ({ ...subject, kind, for_seconds: Number(seconds), reason }),
    done: "It is acknowledged.",
  };
}

/** Asks a rank for a memory snapshot. */
export function requestSnapshot({ run, rank }) {
  return {
    verb: "Request a snapshot",
    title: `Request a memory snapshot of rank ${rank} of run ${run}`,
    note: "The process records its allocations for some steps, below its STEPMEM_SNAPSHOT_DIRECTORY.",
    fields: [],
    path: ofRun(run, "snapshot"),
    body: () => ({ rank }),
    done: "It is requested.",
  };
}

/** Ends a run whose processes are gone. */
export function endRun({ run }) {
  return {
    verb: "End the run",
    title: `End run ${run}`,
    note: "The exporter takes all its ranks as ended, and writes the summary. No process is stopped.",
    fields: [field("How it ended", select(OUTCOMES, "failed"))],
    path: ofRun(run, "end"),
    body: ([outcome]) => ({ outcome }),
    done: "It is ended.",
  };
}

function input(type, attributes) {
  return Object.assign(element("input"), { type, ...attributes });
}

function select(options, chosen) {
  const list = Object.entries(options).map(([value, words]) => Object.assign(element("option", "", words), { value }));
  return Object.assign(element("select", "", ...list), { value: chosen });
}

function field(words, control) {
  control.id = `of-${words.toLowerCase().replaceAll(" ", "-")}`;
  const label = Object.assign(element("label", "", words), { htmlFor: control.id });
  return { node: element("div", "field", label, control), control };
}

/** Opens the dialog of an action; it is gone once it is closed. */
function ask({ verb, title, note, fields, path, body, done }) {
  // Not offered to be kept, as a password would be.
  const secret = field("Admin token", input("password", { required: true, autocomplete: "one-time-code" }));
  const [said, cancel, send] = [element("p"), element("button", "more", "Cancel"), element("button", "more is-first", verb)];
  said.setAttribute("role", "alert");
  cancel.type = "button";
  const form = element("form", "", element("h2", "", title), element("p", "quiet", note), ...fields.map(({ node }) => node), secret.node, said, element("p", "tools", cancel, send));
  const dialog = element("dialog", "panel", form);
  dialog.setAttribute("aria-label", title);
  const askToken = () => {
    show(secret.node, token === "");
    secret.control.disabled = token !== "";
  };
  askToken();
  cancel.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    token ||= secret.control.value.trim();
    secret.control.value = "";
    send.disabled = true;
    const refusal = await post(path, body(fields.map(({ control }) => control.value)));
    send.disabled = false;
    text(said, refusal ?? done);
    said.className = refusal === null ? "" : "refusal";
    askToken();
    if (refusal !== null) return;
    for (const node of [...fields.map((of) => of.node), secret.node, send]) show(node, false);
    text(cancel, "Close");
    cancel.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
}

/** Sends a request; returns why it was refused, `null` if it was not. A wrong token is forgotten. */
async function post(path, body) {
  try {
    // A header has bytes: those of the token in UTF-8, as its file has them.
    const bytes = String.fromCharCode(...new TextEncoder().encode(token));
    const headers = { "content-type": "application/json", [HEADER]: bytes };
    const signal = AbortSignal.timeout(ANSWER_WITHIN_MS);
    const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal, redirect: "error" });
    if (response.ok) return null;
    if ([401, 429].includes(response.status)) token = "";
    const said = await response.text();
    return response.headers.get("content-type") === "application/problem+json" ? JSON.parse(said).detail : said;
  } catch (error) {
    return error.name === "TimeoutError" ? "The exporter did not answer in time." : error.message;
  }
}
