// Names beside the rows and under the columns of a picture that has too many of them to name all.

import { ticks } from "../timeline/scale.js";

/** Room for a line of text, and between two that are read apart, CSS pixels. */
const LINE = 14;
const APART = 64;

/** Pixels that names beside rows need: those of "rank 1023", in bold. */
export const NAMES = 74;

/**
 * Rows to name, ascending: the affected, then others at regular places; none covers another.
 * @param {number} count
 * @param {number} pitch pixels of a row
 * @param {(row: number) => boolean} affected
 */
export function namedRows(count, pitch, affected) {
  const all = Array.from({ length: count }, (_, row) => row);
  const regular = pitch >= LINE ? all : wholeTicks(count - 1, count * pitch, APART);
  /** @type {number[]} */
  const named = [];
  for (const row of [...all.filter(affected), ...regular])
    if (named.every((other) => Math.abs(other - row) * pitch >= LINE)) named.push(row);
  return named.sort((a, b) => a - b);
}

/**
 * Columns to name, at round numbers where they are numbered without gaps.
 * @param {number[]} numbers of the columns, ascending
 * @param {number} width pixels of all
 */
export function namedColumns(numbers, width) {
  const last = numbers.length - 1;
  if (numbers[last] - numbers[0] !== last) return wholeTicks(last, width, APART);
  return ticks({ from: numbers[0], to: Math.max(numbers[last], numbers[0] + 1) }, width, APART)
    .map((number) => number - numbers[0])
    .filter((column) => Number.isInteger(column) && column <= last);
}

/**
 * @param {number} last
 * @param {number} pixels
 * @param {number} apart
 */
const wholeTicks = (last, pixels, apart) => (last > 0 ? ticks({ from: 0, to: last }, pixels, apart).filter(Number.isInteger) : [0]);

/**
 * Write names right-aligned beside their rows.
 * @param {CanvasRenderingContext2D} context
 * @param {(name: string) => string} colour
 * @param {object} given
 * @param {string[]} given.names of all rows
 * @param {(row: number) => boolean} given.affected
 * @param {number} given.pitch pixels of a row
 * @param {number} given.top of the first row
 * @param {number} given.right
 */
export function nameRows(context, colour, { names, affected, pitch, top, right }) {
  const { fontFamily } = getComputedStyle(context.canvas);
  const bottom = top + names.length * pitch;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const row of namedRows(names.length, pitch, affected)) {
    context.font = `${affected(row) ? "650 " : ""}11px ${fontFamily}`;
    context.fillStyle = colour(affected(row) ? "critical" : "soft");
    const y = top + (row + 0.5) * pitch;
    context.fillText(shortened(context, names[row], right), right, Math.max(top + 5, Math.min(bottom - 5, y)));
  }
  context.textAlign = "left";
}

/**
 * A text that fits: its middle gives way, since hosts of a cluster differ at either end.
 * @param {CanvasRenderingContext2D} context
 * @param {string} text
 * @param {number} room pixels
 */
function shortened(context, text, room) {
  const { width } = context.measureText(text);
  if (width <= room) return text;
  const half = Math.max(1, Math.floor((text.length * room) / width / 2) - 1);
  return `${text.slice(0, half)}…${text.slice(-half)}`;
}
