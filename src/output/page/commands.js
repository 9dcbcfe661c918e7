// The commands for what a reader does next, to copy.

import { isKnown } from "./format.js";

/** A word of a shell command. */
const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** What to do about a rank: words, and a command. `pod` is that of its device, where the kubelet names it. */
export function commandsOf(rank, pod) {
  const of = `--run ${quoted(rank.run)} --rank ${rank.rank}`;
  const to = (pushUrl === PUSH_URL && !tokens ? of : `${of} --url ${pushUrl}`) + asAdmin;
  const [finding] = rank.findings.filter(({ run }) => isKnown(run));
  const list = [["Explain which tests stop or show its growth", `stepmem explain --url ${location.origin} ${of}`]];
  if (finding) list.push([`Lower ${finding.status} to info for a day`, `stepmem ack ${to} --kind ${finding.kind} --for 1d --reason 'known'`]);
  if (canSnapshot(rank)) list.push(["Ask for a memory snapshot", `stepmem snapshot take --url ${location.origin} ${of}${asAdmin}`]);
  if (!rank.end) list.push(["End it, if its process is gone", `stepmem end ${to} --outcome failed`]);
  if (pod) list.push(["Run one of these in its pod", `kubectl exec --namespace ${quoted(pod.namespace)} ${quoted(pod.pod)} --container stepmem -- stepmem status`]);
  return list;
}

/** Whether a rank can be asked for a memory snapshot. */
export const canSnapshot = ({ end, state, device }) => !end && state !== "silent" && Boolean(device) && device !== "cpu";

const PUSH_URL = "http://127.0.0.1:9478";

const { content: url, dataset } = document.querySelector('meta[name="push-url"]');
/** Where this exporter takes pushes. */
const pushUrl = url && !url.includes("{{") ? url.replace(/\/$/, "") : PUSH_URL;
/** The roles that it asks for a token, which no default address gets. */
const { tokens } = dataset;
const needsToken = tokens.includes("push");
const asAdmin = tokens && " --token-file FILE";

/** The command of a training script that pushes here; without an address the client takes the usual one. */
export function clientCommand() {
  const token = needsToken ? "STEPMEM_PUSH_TOKEN_FILE=FILE " : "";
  return `${token}${pushUrl === PUSH_URL && !token ? "" : `STEPMEM_PUSH_URL=${pushUrl} `}python -m stepmem train.py`;
}

export function pushExample() {
  const record = '{"run":"demo","rank":0,"step":1,"allocated_bytes":1073741824}';
  const where = pushUrl.startsWith("unix:") ? `--unix-socket ${pushUrl.slice(7)} http://localhost/v1/steps` : `${pushUrl}/v1/steps`;
  return `curl ${needsToken ? `-H "Authorization: Bearer $(cat FILE)" ` : ""}-H 'content-type: application/json' -d '${record}' ${where}`;
}
