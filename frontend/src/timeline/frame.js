// The edges of a timeline: names of ranks and lanes at the left, steps and the time since the start of the one that shows
// above. Coordinates are CSS pixels.

import { ms } from "../format.js";
import { ticks } from "./scale.js";

/** @typedef {import("./draw.js").Scene} Scene */
/** @typedef {import("./draw.js").X} X */

export const GUTTER = 108;
/** Steps above, time below. */
export const AXIS = 40;
export const STEP_LINE = 18;

/**
 * The affected ranks stand on a ground of their own.
 * @param {CanvasRenderingContext2D} context
 * @param {number} width
 * @param {(name: string) => string} colour
 * @param {Scene} scene
 */
export function tints(context, width, colour, { laid, affected }) {
  context.fillStyle = colour("critical");
  context.globalAlpha = 0.07;
  for (const { rank, top, height } of laid.blocks) if (affected.has(rank)) context.fillRect(0, AXIS + top - 1, width, height + 2);
  context.globalAlpha = 1;
}

/**
 * The steps, and the time since the start of the one that shows.
 * @param {CanvasRenderingContext2D} context
 * @param {number} width
 * @param {number} height
 * @param {(name: string) => string} colour
 * @param {string} font
 * @param {Scene} scene
 * @param {X} x
 */
export function axis(context, width, height, colour, font, { span, steps, zero }, x) {
  let until = GUTTER;
  for (const { step, from, to } of steps) {
    const [left, right] = [Math.max(GUTTER, x(from)), Math.min(width, x(to))];
    if (right <= left) continue;
    context.fillStyle = colour("line");
    context.globalAlpha = from === zero ? 0.9 : 0.45;
    context.fillRect(left, 0, right - left - 1, STEP_LINE - 3);
    context.globalAlpha = 1;
    context.font = `${from === zero ? "650 " : ""}11px ${font}`;
    const text = `step ${step}, ${ms((to - from) / 1e3)}`;
    const at = Math.max(left + 5, until);
    if (at + context.measureText(text).width > right - 2) continue;
    context.fillStyle = colour("ink");
    context.fillText(text, at, STEP_LINE / 2 - 1);
    until = at + context.measureText(text).width + 8;
  }
  context.font = `11px ${font}`;
  until = GUTTER - 20;
  for (const at of ticks({ from: span.from - zero, to: span.to - zero }, width - GUTTER, 96)) {
    const left = x(at + zero);
    context.fillStyle = colour("line");
    context.fillRect(Math.round(left), STEP_LINE, 1, height - STEP_LINE);
    context.fillStyle = colour("soft");
    const text = at === 0 ? "0" : ms(at / 1000).replace(/\.0(?=\D|$)/, "");
    const end = left + 4 + context.measureText(text).width;
    if (left < until || end > width) continue;
    context.fillText(text, left + 4, STEP_LINE + 9);
    until = end + 6;
  }
}

/**
 * Whether some of what lies below the axis is in the part that is drawn.
 * @param {{top: number, height: number}} place
 * @param {Scene} scene
 */
export const isDrawn = ({ top, height }, { part }) => !part || (AXIS + top + height > part.top && AXIS + top < part.bottom);

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} width
 * @param {(name: string) => string} colour
 * @param {string} font
 * @param {Scene} scene
 */
export function names(context, width, colour, font, scene) {
  const { laid, affected } = scene;
  const nodes = endings(laid.blocks.map(({ node }) => node));
  for (const [i, block] of laid.blocks.entries()) {
    if (!isDrawn(block, scene)) continue;
    const { rank, node, top, folded } = block;
    if (i && !(folded && laid.blocks[i - 1].folded)) {
      context.fillStyle = colour("line");
      context.fillRect(0, AXIS + top - 6, width, 1);
    }
    const y = AXIS + top + (folded ? 8 : 9);
    context.font = `${affected.has(rank) ? "650 " : ""}12px ${font}`;
    context.fillStyle = colour(affected.has(rank) ? "critical" : "ink");
    const name = `${folded ? "▸" : "▾"} rank ${rank}`;
    context.fillText(name, 0, y);
    const after = context.measureText(name).width + 6;
    context.font = `11px ${font}`;
    context.fillStyle = colour("soft");
    const room = GUTTER - 6 - after;
    context.fillText(context.measureText(node).width <= room ? node : fitting(context, nodes.get(node) ?? node, room), after, y);
  }
  context.font = `11px ${font}`;
  context.fillStyle = colour("soft");
  context.textAlign = "right";
  for (const row of [...laid.rows, ...laid.curves]) if (row.title && isDrawn(row, scene)) context.fillText(row.title, GUTTER - 8, AXIS + row.top + row.height / 2);
  context.textAlign = "left";
}

/**
 * What is left of each name without what all of them begin and end with: "node-007.cluster" is "…007" beside
 * "node-012.cluster". Digits stay together.
 * @param {string[]} names
 * @returns {Map<string, string>} by name
 */
export function endings(names) {
  const [one = "", ...others] = new Set(names);
  if (!others.length) return new Map();
  const isShared = (/** @type {(name: string) => string | undefined} */ letter) => others.every((name) => letter(name) === letter(one));
  const shortest = Math.min(one.length, ...others.map(({ length }) => length));
  let start = 0;
  while (start < shortest && isShared((name) => name[start])) start++;
  let end = 0;
  while (end < shortest - start && isShared((name) => name.at(-1 - end))) end++;
  const isDigit = (/** @type {string | undefined} */ letter) => letter !== undefined && letter >= "0" && letter <= "9";
  while (start && isDigit(one[start - 1])) start--;
  while (end && isDigit(one.at(-end))) end--;
  if (shortest === start + end) return new Map();
  return new Map([one, ...others].map((name) => [name, `${start ? "…" : ""}${name.slice(start, name.length - end)}`]));
}

/**
 * As much of a text as there is room for; nothing where that says nothing.
 * @param {CanvasRenderingContext2D} context
 * @param {string} text
 * @param {number} room pixels
 */
export function fitting(context, text, room) {
  const { width } = context.measureText(text);
  if (width <= room) return text;
  const letters = Math.floor((text.length * room) / width) - 1;
  return letters > 2 ? `${text.slice(0, letters)}…` : "";
}
