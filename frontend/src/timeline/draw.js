// The picture of the timeline. Coordinates are CSS pixels: lanes begin right of GUTTER and below AXIS; rows carry their
// own place below that (`rows.js`). Time is us after the report's origin.

import { hatch } from "../canvas.js";
import { ms } from "../format.js";
import { visible } from "./cull.js";
import { shortName, waitsUntil } from "./rows.js";
import { ticks } from "./scale.js";

/** @typedef {import("./rows.js").Laid} Laid */
/** @typedef {import("./rows.js").Row} Row */
/** @typedef {import("./scale.js").Span} Span */

export const GUTTER = 84;
export const AXIS = 24;
/** From this width on an event has room for letters, of about this width each. */
const NAMED_PX = 34;
const LETTER_PX = 5.9;
/** Longer names of nodes would run into the lanes' labels. */
const NODE_LETTERS = 20;

/**
 * @typedef {object} Scene
 * @property {Laid} laid
 * @property {Span} span
 * @property {Span} evidence us; empty where there is none
 * @property {Set<number>} affected ranks
 * @property {{row: number, index: number} | null} chosen
 * @property {Set<string>} found `row:event` of what the search found
 * @property {number[]} marks us
 * @property {Span | null} measured
 */

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} width
 * @param {number} height
 * @param {(name: string) => string} colour
 * @param {Scene} scene
 */
export function draw(context, width, height, colour, scene) {
  const { laid, span } = scene;
  const lanes = width - GUTTER;
  const x = (/** @type {number} */ at) => GUTTER + ((at - span.from) / (span.to - span.from)) * lanes;
  const font = getComputedStyle(context.canvas).fontFamily;
  context.textBaseline = "middle";
  axis(context, width, height, colour, font, scene, x);
  names(context, width, colour, font, scene);
  context.save();
  context.beginPath();
  context.rect(GUTTER, 0, lanes, height);
  context.clip();
  const fills = fillsOf(context, colour);
  context.font = `10.5px ${font}`;
  laid.rows.forEach((row, number) => events(context, colour, scene, row, number, lanes, fills));
  joins(context, colour, scene, x);
  labels(context, colour, font, scene, x);
  rulers(context, height, colour, font, scene, x);
  context.restore();
}

/** @typedef {(at: number) => number} X */

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} width
 * @param {number} height
 * @param {(name: string) => string} colour
 * @param {string} font
 * @param {Scene} scene
 * @param {X} x
 */
function axis(context, width, height, colour, font, { span, evidence }, x) {
  const zero = evidence.to > evidence.from ? evidence.from : 0;
  context.font = `11px ${font}`;
  for (const at of ticks({ from: span.from - zero, to: span.to - zero }, width - GUTTER, 96)) {
    const left = x(at + zero);
    context.fillStyle = colour("line");
    context.fillRect(Math.round(left), AXIS - 5, 1, height - AXIS + 5);
    context.fillStyle = colour("soft");
    const text = at === 0 ? "0" : ms(at / 1000).replace(/\.0(?=\D|$)/, "");
    if (left + 3 + text.length * 6.4 < width) context.fillText(text, left + 3, AXIS / 2 - 2);
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} width
 * @param {(name: string) => string} colour
 * @param {string} font
 * @param {Scene} scene
 */
function names(context, width, colour, font, { laid, affected }) {
  for (const [i, { rank, node, top }] of laid.blocks.entries()) {
    if (i) {
      context.fillStyle = colour("line");
      context.fillRect(0, AXIS + top - 6, width, 1);
    }
    context.font = `${affected.has(rank) ? "650 " : ""}12px ${font}`;
    context.fillStyle = colour(affected.has(rank) ? "critical" : "ink");
    const name = `rank ${rank}`;
    context.fillText(name, 0, AXIS + top + 9);
    if (!node) continue;
    const after = context.measureText(name).width + 6;
    context.font = `11px ${font}`;
    context.fillStyle = colour("soft");
    context.fillText(node.length > NODE_LETTERS ? `${node.slice(0, NODE_LETTERS - 1)}…` : node, after, AXIS + top + 9);
  }
  context.font = `11px ${font}`;
  context.fillStyle = colour("soft");
  context.textAlign = "right";
  for (const { title, top, height } of laid.rows) if (title) context.fillText(title, GUTTER - 8, AXIS + top + height / 2);
  context.textAlign = "left";
}

/**
 * Owners as the budget has them; the host's operators and what it does between them are grey, to leave the colours to
 * what matters.
 * @param {CanvasRenderingContext2D} context
 * @param {(name: string) => string} colour
 */
function fillsOf(context, colour) {
  const wait = hatch(context, colour);
  /** @type {(owner: string, onDevice: boolean) => string | CanvasPattern} */
  return (owner, onDevice) => {
    if (owner === "wait") return wait;
    if (owner === "communication") return colour("transfer");
    if (owner === "dispatch" || (owner === "compute" && !onDevice)) return colour("operator");
    return colour(owner === "host" ? "around" : owner);
  };
}

/**
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
  for (const { index, x, width, count } of visible(row.starts, row.ends, span, lanes)) {
    const left = GUTTER + x;
    const owner = row.owners[row.owner[index]];
    const lit = !dims || (count === 1 ? found.has(`${number}:${index}`) : anyFound(found, number, index, count));
    context.globalAlpha = lit ? 1 : 0.25;
    context.fillStyle = fills(owner, row.onDevice);
    context.fillRect(left, top, Math.max(0.8, width - (width > 3 ? 0.6 : 0)), height);
    if (count > 1 || width < 1.5) continue;
    const waited = owner === "communication" ? waitsUntil(row, index, laid.joined) : row.starts[index];
    if (waited > row.starts[index]) {
      const until = Math.min(lanes, (waited - span.from) * scale);
      context.fillStyle = fills("wait", true);
      if (until > x) context.fillRect(left, top, until - x, height);
    }
    if (width > NAMED_PX && row.height >= 10) {
      const name = shortName(row.names[row.name[index]]);
      const letters = Math.floor((width - 6) / LETTER_PX);
      const text = letters < name.length ? `${name.slice(0, Math.max(0, letters - 1))}…` : name;
      const waits = waited > row.starts[index];
      context.fillStyle = colour(inkOn(owner, row.onDevice, waits));
      if (letters > 3 && !waits) context.fillText(text, left + 3, top + height / 2 + 0.5);
    }
  }
  context.globalAlpha = 1;
  if (chosen?.row === number) {
    const left = GUTTER + (row.starts[chosen.index] - span.from) * scale;
    context.strokeStyle = colour("ink");
    context.lineWidth = 2;
    context.strokeRect(left, top, Math.max(2, (row.ends[chosen.index] - row.starts[chosen.index]) * scale), height);
  }
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
 * @param {boolean} onDevice
 * @param {boolean} waits
 */
function inkOn(owner, onDevice, waits) {
  if (waits) return "on-light";
  if (owner === "dispatch" || owner === "host" || (owner === "compute" && !onDevice)) return "ink";
  return "on-owner";
}

/**
 * A line through the arrivals of each collective, in the order of the ranks: the late one shows as a fan.
 * @param {CanvasRenderingContext2D} context
 * @param {(name: string) => string} colour
 * @param {Scene} scene
 * @param {X} x
 */
function joins(context, colour, { laid, chosen }, x) {
  const key = chosen ? String(laid.rows[chosen.row].collective[chosen.index]) : "";
  for (const one of laid.joined.values()) {
    if (one.arrivals.length < 2) continue;
    const bold = one.key === key;
    context.strokeStyle = colour("accent");
    context.globalAlpha = bold ? 1 : 0.55;
    context.lineWidth = bold ? 2 : 1;
    context.beginPath();
    for (const { at, y } of one.arrivals) context.lineTo(x(at), AXIS + y);
    context.stroke();
    context.fillStyle = colour("accent");
    for (const { at, y, rank } of one.arrivals) {
      if (rank !== one.last_rank) continue;
      context.beginPath();
      context.arc(x(at), AXIS + y, bold ? 4 : 3, 0, 2 * Math.PI);
      context.fill();
    }
  }
  context.globalAlpha = 1;
}

/**
 * A frame around each piece of evidence, with what it is beside it where there is room.
 * @param {CanvasRenderingContext2D} context
 * @param {(name: string) => string} colour
 * @param {string} font
 * @param {Scene} scene
 * @param {X} x
 */
function labels(context, colour, font, { laid, affected }, x) {
  context.font = `600 11px ${font}`;
  for (const { rank, from, to, title, what } of laid.labels) {
    const block = laid.blocks.find((one) => one.rank === rank);
    if (!block) continue;
    const name = colour(affected.has(rank) ? "critical" : "soft");
    const [left, right] = [Math.max(x(from), GUTTER + 1), Math.min(x(to), context.canvas.clientWidth - 1)];
    if (right < GUTTER || left > context.canvas.clientWidth) continue;
    context.strokeStyle = name;
    context.lineWidth = 1.5;
    context.setLineDash([4, 3]);
    context.strokeRect(left, AXIS + block.top + 17, Math.max(2, right - left), block.height - 18);
    context.setLineDash([]);
    const said = `${title}: ${what}`;
    const letters = Math.floor((right - left - 8) / 6.1);
    const text = letters < said.length ? (letters > 12 ? `${said.slice(0, letters - 1)}…` : "") : said;
    if (!text) continue;
    context.fillStyle = colour("card");
    context.fillRect(left + 2, AXIS + block.top + 1, context.measureText(text).width + 6, 15);
    context.fillStyle = name;
    context.fillText(text, left + 5, AXIS + block.top + 9);
  }
}

/**
 * Marks, and what is measured.
 * @param {CanvasRenderingContext2D} context
 * @param {number} height
 * @param {(name: string) => string} colour
 * @param {string} font
 * @param {Scene} scene
 * @param {X} x
 */
function rulers(context, height, colour, font, { marks, measured }, x) {
  context.fillStyle = colour("accent");
  for (const at of marks) {
    context.fillRect(x(at) - 0.75, 0, 1.5, height);
    context.beginPath();
    context.moveTo(x(at) - 5, 0);
    context.lineTo(x(at) + 5, 0);
    context.lineTo(x(at), 8);
    context.fill();
  }
  if (!measured) return;
  const [left, right] = [x(measured.from), x(measured.to)].sort((a, b) => a - b);
  context.globalAlpha = 0.14;
  context.fillRect(left, 0, right - left, height);
  context.globalAlpha = 1;
  context.fillRect(left, 0, 1, height);
  context.fillRect(right, 0, 1, height);
  context.font = `650 12px ${font}`;
  const text = ms(Math.abs(measured.to - measured.from) / 1000);
  const wide = context.measureText(text).width + 10;
  context.fillRect((left + right - wide) / 2, AXIS - 4, wide, 18);
  context.fillStyle = colour("card");
  context.fillText(text, (left + right - wide) / 2 + 5, AXIS + 5);
}
