// What a report of a run has instead of an exporter: a status and the past, in the document itself.

const node = document.getElementById("recorded");

/** `null` in the page of an exporter. */
export const recorded = node && JSON.parse(node.textContent);
