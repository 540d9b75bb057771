// Which event the arrow keys lead to, and where a marker goes. Pure.

import { firstAbove } from "./cull.js";

/** @typedef {{row: number, index: number}} Chosen an event: its row, and its index in that */

/**
 * The event beside the chosen one in its row, or at its time in the next row that has any; null at the edge.
 * @param {Pick<import("./rows.js").Row, "starts" | "ends">[]} rows
 * @param {Chosen | null} chosen
 * @param {string} key
 * @param {number} from where to begin without a chosen one, us
 * @returns {Chosen | null}
 */
export function neighbour(rows, chosen, key, from) {
  const row = chosen?.row ?? 0;
  const at = chosen ? rows[row].starts[chosen.index] : from;
  const along = { ArrowLeft: -1, ArrowRight: 1 }[key] ?? 0;
  const across = { ArrowUp: -1, ArrowDown: 1 }[key] ?? 0;
  let to = row + across;
  while (rows[to] && !rows[to].starts.length) to += across || 1;
  if (!rows[to]) return null;
  const index = chosen && !across ? chosen.index + along : firstAbove(rows[to].ends, at);
  return { row: to, index: Math.min(Math.max(index, 0), rows[to].starts.length - 1) };
}

/**
 * Markers in order of time, with one more, or without the one that lies there already.
 * @param {number[]} marks us
 * @param {number} at us
 * @param {number} reach us
 */
export function toggled(marks, at, reach) {
  const near = marks.findIndex((other) => Math.abs(other - at) <= reach);
  return (near < 0 ? [...marks, at] : marks.toSpliced(near, 1)).sort((a, b) => a - b);
}
