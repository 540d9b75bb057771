// From one gap of the GPU to the next. Pure.

import { IDLE } from "../step_parts.js";
import { firstAbove } from "./cull.js";

/** @typedef {import("./rows.js").Row} Row */

/**
 * The next or the previous gap of a rank; null at the edge, or where the rank has none.
 * @param {Row[]} rows
 * @param {number} rank
 * @param {number} at where to begin, us
 * @param {1 | -1} direction
 * @param {number} least shorter ones are passed over, us
 * @returns {import("./walk.js").Chosen | null}
 */
export function nextGap(rows, rank, at, direction, least) {
  const row = rows.findIndex((one) => one.rank === rank && one.paint === "budget");
  if (row < 0) return null;
  const { starts, ends, owners, owner } = rows[row];
  let index = firstAbove(starts, at) - 1;
  if (direction < 0 && index >= 0 && starts[index] === at) index -= 1;
  if (direction > 0) index += 1;
  while (index >= 0 && index < starts.length && (!IDLE.has(owners[owner[index]]) || ends[index] - starts[index] < least)) index += direction;
  return index >= 0 && index < starts.length ? { row, index } : null;
}
