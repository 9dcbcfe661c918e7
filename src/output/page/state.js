// The last status that the exporter answered; every module reads it, only main.js sets it.

export const state = { status: null };
