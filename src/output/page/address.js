// The state of the page in its address, so that a link or a reload shows the same: rank, filter, scale.

const read = () => new URLSearchParams(location.hash.slice(1));

/** A part of the state; empty where the address does not have it. */
export const stateOf = (name) => read().get(name) ?? "";

/** The address with these parts changed; an empty one is left out. */
export function addressWith(changes) {
  const next = read();
  for (const [name, value] of Object.entries(changes)) {
    if (value === "") next.delete(name);
    else next.set(name, String(value));
  }
  return `#${next}`;
}

/** Changes parts of the state without a step in the browser's history. */
export function changeState(changes) {
  history.replaceState(null, "", addressWith(changes));
}
