// What stands over the lanes of a timeline: arrivals, an arrow from a launch to its kernel, the critical path, evidence,
// markers and the selected range. Coordinates are those of `draw.js`.

import { ms } from "../format.js";
import { AXIS, GUTTER, STEP_LINE, fitting } from "./frame.js";
import { onRank, seen } from "./path.js";

/** @typedef {import("./draw.js").Scene} Scene */
/** @typedef {import("./draw.js").X} X */

/** A leg of the critical path that is shorter goes on with the one before; it turns to another rank within so many pixels. */
const LEG_PX = 3;
const TURN_PX = 7;
/** A collective whose ranks wait for less is not marked. */
const MARKED_PX = 24;

/**
 * Where the last rank arrives at a collective that others wait in: a dotted line through all ranks, and a dot on that
 * rank. Of the chosen one a line joins the arrivals of the opened ranks.
 * @param {CanvasRenderingContext2D} context
 * @param {(name: string) => string} colour
 * @param {Scene} scene
 * @param {X} x
 */
export function joins(context, colour, { laid, chosen }, x) {
  const key = chosen ? String(laid.rows[chosen.row].collective[chosen.index]) : "";
  const [first, last] = [laid.blocks[0], laid.blocks[laid.blocks.length - 1]];
  for (const one of laid.joined.values()) {
    if (!one.arrivals.length || !first) continue;
    const bold = one.key === key;
    const waited = Math.max(...one.arrivals.map(({ at }) => x(one.last) - x(at)));
    if (!bold && waited < MARKED_PX) continue;
    context.strokeStyle = colour(bold ? "accent" : "soft");
    context.lineWidth = 1;
    context.setLineDash([2, 3]);
    context.beginPath();
    context.moveTo(x(one.last), AXIS + first.top);
    context.lineTo(x(one.last), AXIS + last.top + last.height);
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = colour("accent");
    if (bold) {
      context.strokeStyle = colour("accent");
      context.lineWidth = 2;
      context.beginPath();
      for (const { at, y } of one.arrivals) context.lineTo(x(at), AXIS + y);
      context.stroke();
    }
    for (const { at, y, rank } of one.arrivals) {
      if (rank !== one.last_rank) continue;
      context.beginPath();
      context.arc(x(at), AXIS + y, bold ? 4 : 3, 0, 2 * Math.PI);
      context.fill();
    }
  }
}

/**
 * An arrow from a launch to what it launched.
 * @param {CanvasRenderingContext2D} context
 * @param {(name: string) => string} colour
 * @param {Scene} scene
 * @param {X} x
 */
export function launch(context, colour, { laid, chosen, launch: other }, x) {
  if (!chosen || !other) return;
  const [from, to] = laid.rows[chosen.row].paint === "device" ? [other, chosen] : [chosen, other];
  const [call, kernel] = [laid.rows[from.row], laid.rows[to.row]];
  const [x1, y1] = [x(call.starts[from.index]), AXIS + call.top + call.height];
  const [x2, y2] = [x(kernel.starts[to.index]), AXIS + kernel.top];
  context.strokeStyle = context.fillStyle = colour("accent");
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(x1, y1);
  context.bezierCurveTo(x1, (y1 + y2) / 2, x2, (y1 + y2) / 2, x2, y2 - 5);
  context.stroke();
  context.beginPath();
  context.moveTo(x2, y2);
  context.lineTo(x2 - 4, y2 - 6);
  context.lineTo(x2 + 4, y2 - 6);
  context.fill();
}

/**
 * The height of each rank's leg of the critical path, and the legs that show; ranks that do not show are left out.
 * @param {Scene} scene
 * @param {X} x
 */
function pathLegs({ laid, span, path }, x) {
  const places = new Map(laid.blocks.map(({ rank, top, height, folded }) => [rank, AXIS + top + height - (folded ? 2 : 4)]));
  const perPixel = (span.to - span.from) / Math.max(1, x(span.to) - x(span.from));
  return { places, shown: seen(path, span, LEG_PX * perPixel) };
}

/**
 * Where the critical path goes from rank to rank: thin, and below the boxes, whose names it would cross.
 * @param {CanvasRenderingContext2D} context
 * @param {(name: string) => string} colour
 * @param {Scene} scene
 * @param {X} x
 */
export function pathTurns(context, colour, scene, x) {
  const { places, shown } = pathLegs(scene, x);
  context.strokeStyle = colour("ink");
  context.lineWidth = 1;
  context.beginPath();
  shown.forEach(({ rank, from, to }, i) => {
    const [before, y] = [i ? places.get(shown[i - 1].rank) : undefined, places.get(rank)];
    if (before === undefined || y === undefined || before === y) return;
    const left = x(from);
    context.moveTo(left - TURN_PX, before);
    context.bezierCurveTo(left, before, left, y, Math.min(left + TURN_PX, x(to)), y);
  });
  context.stroke();
}

/**
 * The critical path: a line with a halo along the bottom of the ranks that it lies on.
 * @param {CanvasRenderingContext2D} context
 * @param {(name: string) => string} colour
 * @param {string} font
 * @param {Scene} scene
 * @param {X} x
 */
export function criticalPath(context, colour, font, scene, x) {
  const { span, path } = scene;
  const { places, shown } = pathLegs(scene, x);
  const line = () => {
    context.beginPath();
    shown.forEach(({ rank, from, to }, i) => {
      const y = places.get(rank);
      if (y === undefined) return;
      const [turned, turns] = [i > 0 && shown[i - 1].rank !== rank, i + 1 < shown.length && shown[i + 1].rank !== rank];
      const left = x(from) + (turned ? TURN_PX : 0);
      context.moveTo(Math.min(left, x(to)), y);
      context.lineTo(Math.max(left, x(to) - (turns ? TURN_PX : 0)), y);
    });
    context.stroke();
  };
  context.lineJoin = "round";
  context.strokeStyle = colour("card");
  context.lineWidth = 5;
  line();
  context.strokeStyle = colour("ink");
  context.lineWidth = 2;
  line();
  const visibleLegs = shown.filter(({ rank }) => places.has(rank));
  if (!visibleLegs.length) return;
  const part = (/** @type {import("./path.js").Leg} */ { from, to }) => Math.min(to, span.to) - Math.max(from, span.from);
  const longest = visibleLegs.reduce((a, b) => (part(b) > part(a) ? b : a));
  context.font = `600 10.5px ${font}`;
  const text = `critical path: ${ms(onRank(path, longest.step, longest.rank) / 1e3)} of step ${longest.step} on rank ${longest.rank}`;
  const wide = context.measureText(text).width + 10;
  const [left, right] = [x(Math.max(longest.from, span.from)), x(Math.min(longest.to, span.to))];
  if (right - left < wide + 20) return;
  const [middle, y] = [(left + right) / 2, places.get(longest.rank) ?? 0];
  context.fillStyle = colour("card");
  context.fillRect(middle - wide / 2, y - 7, wide, 13);
  context.fillStyle = colour("ink");
  context.fillText(text, middle - wide / 2 + 5, y);
}

/**
 * A frame around each piece of evidence, with what it is above the lanes of an opened rank, where there is room.
 * @param {CanvasRenderingContext2D} context
 * @param {(name: string) => string} colour
 * @param {string} font
 * @param {Scene} scene
 * @param {X} x
 */
export function labels(context, colour, font, { laid, affected }, x) {
  context.font = `600 11px ${font}`;
  /** @type {Map<number, number>} */
  const taken = new Map();
  const width = context.canvas.clientWidth;
  for (const { rank, from, to, title, what } of [...laid.labels].sort((a, b) => a.from - b.from)) {
    const block = laid.blocks.find((one) => one.rank === rank);
    if (!block) continue;
    const name = colour(affected.has(rank) ? "critical" : "soft");
    const [left, right] = [Math.max(x(from), GUTTER + 1), Math.min(x(to), width - 1)];
    if (right < GUTTER || left > width) continue;
    context.strokeStyle = name;
    context.lineWidth = 1.5;
    context.setLineDash([4, 3]);
    if (block.folded) context.strokeRect(left, AXIS + block.top, Math.max(2, right - left), block.height - 2);
    else context.strokeRect(left, AXIS + block.top + 17, Math.max(2, right - left), block.height - 28);
    context.setLineDash([]);
    const start = Math.max(left + 2, taken.get(rank) ?? 0);
    const text = block.folded ? "" : fitting(context, `${title}: ${what}`, Math.max(right, Math.min(width, left + 260)) - start - 8);
    if (!text) continue;
    const wide = context.measureText(text).width;
    context.fillStyle = colour("card");
    context.fillRect(start, AXIS + block.top + 1, wide + 6, 15);
    context.fillStyle = name;
    context.fillText(text, start + 3, AXIS + block.top + 9);
    taken.set(rank, start + wide + 14);
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
export function rulers(context, height, colour, font, { marks, measured }, x) {
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
  context.fillRect((left + right - wide) / 2, STEP_LINE, wide, 18);
  context.fillStyle = colour("card");
  context.fillText(text, (left + right - wide) / 2 + 5, STEP_LINE + 9);
}
