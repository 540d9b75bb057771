// A time of all ranks, step by step: how it spreads, and which rank takes longest. Pure; times are ms. A report's grids do
// not change, so what was computed of one is kept.

import { spreadOf } from "./spread.js";

/** @typedef {import("../model.js").Grid} Grid */
/** @typedef {{spread: import("./spread.js").Spread, longest: number}} Step `longest` is the row of the maximum; -1 without values */

/** A rank stands out from so much of the median on. */
const STANDS_OUT = 1.1;

/** @type {WeakMap<Grid, Step[]>} */
const known = new WeakMap();

/**
 * @param {Grid} grid
 * @returns {Step[]}
 */
export function perStep(grid) {
  const found = known.get(grid) ?? (grid[0] ?? []).map((_, column) => stepOf(grid, column));
  known.set(grid, found);
  return found;
}

/**
 * @param {Grid} grid
 * @param {number} column
 * @returns {Step}
 */
function stepOf(grid, column) {
  const values = new Float64Array(grid.length);
  let [present, longest] = [0, -1];
  for (let row = 0; row < grid.length; row++) {
    const value = grid[row][column];
    if (value === null) continue;
    values[present++] = value;
    if (longest < 0 || value > /** @type {number} */ (grid[longest][column])) longest = row;
  }
  return { spread: spreadOf(values.subarray(0, present)), longest };
}

/**
 * The row with the largest value of each column, where it stands out: by a tenth of the column's median or more.
 * @param {Grid} grid
 * @returns {(number | null)[]}
 */
export const slowest = (grid) => perStep(grid).map(({ spread, longest }) => (spread.max > STANDS_OUT * spread.median ? longest : null));
