// The colors of bands: leaking lines are warm, lines without a stack gray, the others take turns.

import { styled } from "./dom.js";

const N_HUES = 10;
const N_WARM = 3;

/** Gives every band the name of its color. */
export function paint(bands) {
  let [n_warm, n_others] = [0, 0];
  return bands.map(({ kind }) => {
    if (kind === "leak") return `--leak-${n_warm++ % N_WARM}`;
    if (kind === "rest") return "--rest";
    if (kind === "unknown") return "--unknown";
    const turn = n_others++;
    return `--band-${turn % N_HUES}${turn >= N_HUES ? "-pale" : ""}`;
  });
}

export const color = (name) => styled(name);
