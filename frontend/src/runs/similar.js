// Which runs are worth comparing with one, the most similar first. Pure.

/** @typedef {import("../model.js").RunEntry} RunEntry */

/**
 * Runs by how much they are like another: of as many ranks, of a like name, of a like step time; those not read yet and
 * those of one likeness by their names.
 * @param {RunEntry[]} runs
 * @param {{name: string, world_size: number | null, step_ms: number | null}} to
 */
export function bySimilarity(runs, to) {
  const words = wordsOf(to.name);
  const scored = runs.map((run) => ({ run, score: ofWords(words, wordsOf(run.name)) + (run.world_size !== null && run.world_size === to.world_size ? 1 : 0) + ofTimes(run.step_ms, to.step_ms) }));
  return scored.sort((a, b) => b.score - a.score || natural(a.run.name, b.run.name)).map(({ run }) => run);
}

/** @param {string} a @param {string} b */
export const natural = (a, b) => a.localeCompare(b, "en", { numeric: true });

/** @param {string} name */
const wordsOf = (name) => new Set(name.toLowerCase().match(/[a-z]+|\d+/g) ?? []);

/** The share of words that are in both, 0 to 1. @param {Set<string>} a @param {Set<string>} b */
function ofWords(a, b) {
  const both = [...a].filter((word) => b.has(word)).length;
  return both / Math.max(1, a.size + b.size - both);
}

/** 1 for the same step time, 1/2 for twice it. @param {number | null} a @param {number | null} b */
const ofTimes = (a, b) => (a && b ? Math.min(a, b) / Math.max(a, b) : 0);
