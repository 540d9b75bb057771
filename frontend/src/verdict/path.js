// The critical path of one step as a strip: who determines the step's length, in order of time. Pure, but for the last
// function. Positions are ms from the step's start.

import { OWNERS, PHASES } from "../step_parts.js";

/** @typedef {import("../model.js").PathStep} PathStep */
/** @typedef {import("../model.js").PathPiece} PathPiece */
/** @typedef {{start: number, end: number, owner: string, rank: number, phase: string | null, what: string, pieces: number}} Stretch */

/** Pieces that a strip shows at most, as parts of its width: shorter ones in a row are drawn as one. */
const SHOWN = 500;

/** @param {PathStep} step */
export const lengthOf = ({ start_ns, end_ns }) => (end_ns - start_ns) / 1e6;

/**
 * The step to show: the one that is chosen, else that of median length.
 * @param {PathStep[]} steps
 * @param {number | null} chosen
 */
export function stepToShow(steps, chosen) {
  const named = steps.find(({ step }) => step === chosen);
  return named ?? [...steps].sort((a, b) => lengthOf(a) - lengthOf(b))[Math.floor((steps.length - 1) / 2)];
}

/**
 * What is drawn: neighbours of one owner, rank and phase as one, and a row of short ones as the owner of most of it.
 * @param {PathStep} step
 * @returns {Stretch[]}
 */
export function stretches(step) {
  const least = lengthOf(step) / SHOWN;
  /** @type {Stretch[]} */
  const joined = [];
  for (const { rank, owner, phase, what, start_ms, ms } of step.pieces) {
    const last = joined[joined.length - 1];
    if (last && last.owner === owner && last.rank === rank && last.phase === phase) {
      last.end = start_ms + ms;
      last.pieces += 1;
      if (last.what !== what) last.what = "";
    } else joined.push({ start: start_ms, end: start_ms + ms, owner, rank, phase, what, pieces: 1 });
  }
  /** @type {Stretch[]} */
  const drawn = [];
  /** @type {Stretch[]} */
  let few = [];
  const flush = () => {
    if (few.length) drawn.push(few.length === 1 ? few[0] : asOne(few));
    few = [];
  };
  for (const one of joined) {
    if (one.end - one.start >= least) {
      flush();
      drawn.push(one);
    } else {
      few.push(one);
      if (one.end - few[0].start >= least) flush();
    }
  }
  flush();
  return drawn;
}

/** @param {Stretch[]} few @returns {Stretch} */
function asOne(few) {
  const longest = few.reduce((a, b) => (b.end - b.start > a.end - a.start ? b : a));
  return { ...longest, start: few[0].start, end: few[few.length - 1].end, what: "", pieces: few.reduce((sum, { pieces }) => sum + pieces, 0) };
}

/**
 * How long the path is in each owner, in their order; together the step.
 * @param {PathStep} step
 */
export const byOwner = (step) => summed(step.pieces, ({ owner }) => owner, [...OWNERS.keys()]);

/**
 * How long it is on each rank, the longest first.
 * @param {PathStep} step
 */
export const byRank = (step) => summed(step.pieces, ({ rank }) => rank, []).sort((a, b) => b.ms - a.ms);

/**
 * @template {string | number} K
 * @param {PathPiece[]} pieces
 * @param {(piece: PathPiece) => K} of
 * @param {K[]} order
 */
function summed(pieces, of, order) {
  /** @type {Map<K, number>} */
  const sums = new Map(order.map((key) => [key, 0]));
  for (const piece of pieces) sums.set(of(piece), (sums.get(of(piece)) ?? 0) + piece.ms);
  return [...sums].filter(([, ms]) => ms > 0).map(([key, ms]) => ({ key, ms }));
}

/**
 * The phases that the path goes through; one that is interrupted for less than a hundredth of the step goes on.
 * @param {PathStep} step
 * @returns {{name: string, start: number, end: number}[]}
 */
export function phases(step) {
  const least = lengthOf(step) / 100;
  /** @type {{name: string, start: number, end: number}[]} */
  const found = [];
  for (const { phase, start_ms, ms } of step.pieces) {
    const name = PHASES.get(phase ?? "")?.name ?? "";
    const last = found[found.length - 1];
    if (last && last.name === name) last.end = start_ms + ms;
    else found.push({ name, start: start_ms, end: start_ms + ms });
  }
  /** @type {typeof found} */
  const long = [];
  for (const one of found) {
    const last = long[long.length - 1];
    if (last && (one.name === last.name || one.end - one.start < least)) last.end = one.end;
    else long.push(one);
  }
  return long.filter(({ name, start, end }) => name && end - start >= least);
}
