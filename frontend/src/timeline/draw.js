// The picture of the timeline. Coordinates are CSS pixels: lanes begin right of GUTTER and below AXIS; rows carry their
// own place below that (`rows.js`). Time is us after the report's origin.

import { fillOf } from "../chart/textures.js";
import { ms } from "../format.js";
import { visible } from "./cull.js";
import { curves } from "./curves.js";
import { AXIS, GUTTER, axis, isDrawn, names, tints } from "./frame.js";
import { criticalPath, joins, labels, launch, pathTurns, rulers } from "./marks.js";
import { waitsUntil, written } from "./rows.js";

/** @typedef {import("./rows.js").Laid} Laid */
/** @typedef {import("./rows.js").Row} Row */
/** @typedef {import("./scale.js").Span} Span */

/** From this width on an event has room for letters, of about this width each. */
const NAMED_PX = 34;
const LETTER_PX = 5.9;

/**
 * @typedef {object} Scene
 * @property {Laid} laid
 * @property {Span} span
 * @property {import("./steps.js").Step[]} steps of the rank on top
 * @property {number} zero where the axis begins, us
 * @property {import("./path.js").Leg[]} path
 * @property {Set<number>} affected ranks
 * @property {{row: number, index: number} | null} chosen
 * @property {{row: number, index: number} | null} launch the call that launched the chosen event, or what that launched
 * @property {Set<string>} found `row:event` of what the search found
 * @property {number[]} marks us
 * @property {Span | null} measured
 * @property {Part | null} part what is drawn; null for all
 */

/** @typedef {{top: number, bottom: number}} Part of a picture's height, CSS pixels */

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} width
 * @param {number} height
 * @param {(name: string) => string} colour
 * @param {Scene} scene
 */
export function draw(context, width, height, colour, scene) {
  const { laid, span } = scene;
  const { top, bottom } = scene.part ?? { top: 0, bottom: height };
  const lanes = width - GUTTER;
  const x = (/** @type {number} */ at) => GUTTER + ((at - span.from) / (span.to - span.from)) * lanes;
  const font = getComputedStyle(context.canvas).fontFamily;
  context.textBaseline = "middle";
  context.save();
  context.beginPath();
  context.rect(0, top, width, bottom - top);
  context.clip();
  tints(context, width, colour, scene);
  axis(context, width, height, colour, font, scene, x);
  names(context, width, colour, font, scene);
  context.beginPath();
  context.rect(GUTTER, 0, lanes, height);
  context.clip();
  const fills = fillsOf(context, colour);
  context.font = `10.5px ${font}`;
  pathTurns(context, colour, scene, x);
  laid.rows.forEach((row, number) => isDrawn(row, scene) && events(context, colour, scene, row, number, lanes, fills));
  curves(context, colour, scene, x);
  joins(context, colour, scene, x);
  launch(context, colour, scene, x);
  criticalPath(context, colour, font, scene, x);
  labels(context, colour, font, scene, x);
  rulers(context, height, colour, font, scene, x);
  context.restore();
}

/** @typedef {(at: number) => number} X */

/**
 * Owners as the budget has them; the host's operators and what it does between them are grey, as is the profiler's own
 * work, to leave the colours to what matters.
 * @param {CanvasRenderingContext2D} context
 * @param {(name: string) => string} colour
 */
function fillsOf(context, colour) {
  /** @type {Map<string, string | CanvasPattern>} */
  const known = new Map();
  const owned = (/** @type {string} */ owner) => {
    const fill = known.get(owner) ?? fillOf(context, owner, colour);
    known.set(owner, fill);
    return fill;
  };
  /** @type {(owner: string, paint: Row["paint"]) => string | CanvasPattern} */
  return (owner, paint) => {
    if (owner === "profiler") return colour("around");
    if (paint === "budget" || owner === "wait") return owned(owner);
    if (owner === "communication") return colour("transfer");
    if (owner === "dispatch" || (owner === "compute" && paint !== "device")) return colour("operator");
    return colour(owner === "host" ? "around" : owner);
  };
}

/**
 * The boxes of a row, a fill at a time: to change the pen costs more than to move it.
 * @param {CanvasRenderingContext2D} context
 * @param {(name: string) => string} colour
 * @param {Scene} scene
 * @param {Row} row
 * @param {number} number
 * @param {number} lanes pixels
 * @param {ReturnType<typeof fillsOf>} fills
 */
function events(context, colour, { laid, span, chosen, found }, row, number, lanes, fills) {
  const top = AXIS + row.top;
  const height = row.height - 1.5;
  const scale = lanes / (span.to - span.from);
  const dims = found.size > 0;
  const drawn = visible(row.starts, row.ends, span, lanes);
  /** @type {Map<string, number[]>} lefts and widths by owner, those that the search did not find apart */
  const boxes = new Map();
  for (const { index, x, width, count } of drawn) {
    const lit = !dims || (count === 1 ? found.has(`${number}:${index}`) : anyFound(found, number, index, count));
    const key = `${lit ? "" : " "}${row.owners[row.owner[index]]}`;
    let list = boxes.get(key);
    if (!list) boxes.set(key, (list = []));
    const [left, wide] = [GUTTER + x, Math.max(0.8, width - (width > 3 ? 0.6 : 0))];
    const last = list.length - 2;
    // Slivers in a row are one box.
    if (wide <= 1 && last >= 0 && left <= list[last] + list[last + 1] + 0.2) list[last + 1] = left + wide - list[last];
    else list.push(left, wide);
  }
  for (const [key, list] of boxes) {
    context.globalAlpha = key.startsWith(" ") ? 0.25 : 1;
    context.fillStyle = fills(key.trim(), row.paint);
    for (let i = 0; i < list.length; i += 2) context.fillRect(list[i], top, list[i + 1], height);
  }
  context.globalAlpha = 1;
  for (const { index, x, width, count } of drawn) {
    if (count > 1 || width < 1.5) continue;
    const communicates = row.owners[row.owner[index]] === "communication";
    const waited = communicates ? waitsUntil(row, index, laid.joined) : row.starts[index];
    if (waited > row.starts[index]) {
      const until = Math.min(lanes, (waited - span.from) * scale);
      context.globalAlpha = !dims || found.has(`${number}:${index}`) ? 1 : 0.25;
      context.fillStyle = fills("wait", row.paint);
      if (until > x) context.fillRect(GUTTER + x, top, until - x, height);
      context.globalAlpha = 1;
    }
    if (width > NAMED_PX && row.height >= 10) name(context, colour, row, index, laid, GUTTER + x, width, top, height);
  }
  if (chosen?.row === number) {
    const left = GUTTER + (row.starts[chosen.index] - span.from) * scale;
    context.strokeStyle = colour("ink");
    context.lineWidth = 2;
    context.strokeRect(left, top, Math.max(2, (row.ends[chosen.index] - row.starts[chosen.index]) * scale), height);
  }
}

/**
 * What is written on a box, as far as it fits; over hatching on a plate.
 * @param {CanvasRenderingContext2D} context
 * @param {(name: string) => string} colour
 * @param {Row} row
 * @param {number} index
 * @param {Laid} laid
 * @param {number} left
 * @param {number} width
 * @param {number} top
 * @param {number} height
 */
function name(context, colour, row, index, laid, left, width, top, height) {
  const owner = row.owners[row.owner[index]];
  const until = owner === "communication" ? waitsUntil(row, index, laid.joined) : row.starts[index];
  const waits = until > row.starts[index];
  if (row.paint === "budget" && (row.folded || owner === "wait")) return;
  const one = laid.joined.get(String(row.collective[index]));
  const length = (row.paint === "budget" ? ` ${ms((row.ends[index] - row.starts[index]) / 1e3)}` : "") + (waits ? `, straggler wait ${ms((until - row.starts[index]) / 1e3)} for rank ${one?.last_rank}` : "");
  const said = `${written(row, index, laid.joined)}${length}`;
  const letters = Math.floor((width - 8) / LETTER_PX);
  if (letters < (waits ? said.length : 4)) return;
  const text = letters < said.length ? `${said.slice(0, Math.max(0, letters - 1))}…` : said;
  if (waits) {
    context.fillStyle = colour("card");
    context.fillRect(left + 2, top + 1.5, context.measureText(text).width + 6, height - 3);
    context.fillStyle = colour("ink");
    context.fillText(text, left + 5, top + height / 2 + 0.5);
    return;
  }
  if (row.paint === "budget") {
    // Over a texture, on a plate of its colour.
    context.fillStyle = colour(owner);
    context.fillRect(left + 1, top + 1.5, context.measureText(text).width + 4, height - 3);
  }
  context.fillStyle = colour(inkOn(owner, row.paint));
  context.fillText(text, left + 3, top + height / 2 + 0.5);
}

/**
 * @param {Set<string>} found
 * @param {number} row
 * @param {number} first
 * @param {number} count
 */
function anyFound(found, row, first, count) {
  for (let i = first; i < first + count; i++) if (found.has(`${row}:${i}`)) return true;
  return false;
}

/**
 * @param {string} owner
 * @param {Row["paint"]} paint
 */
function inkOn(owner, paint) {
  if (paint === "budget") return owner === "dispatch" ? "on-light" : "on-owner";
  if (owner === "dispatch" || owner === "host" || owner === "profiler" || (owner === "compute" && paint !== "device")) return "ink";
  return "on-owner";
}
