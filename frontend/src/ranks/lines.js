// How a time of all ranks goes from step to step: median and p99 as lines on a band from min to p99, and the rank that is
// longest. Coordinates are CSS pixels; the steps' columns are those of the heat map below.

import { picture } from "../canvas.js";
import { ms } from "../format.js";
import { perStep } from "./per_step.js";
import { spreadOf } from "./spread.js";

/** @typedef {import("../model.js").Grid} Grid */

const HEIGHT = 96;
const [TOP, BOTTOM] = [8, 8];
/** Room for the names of the lines, at the right end. */
const LABEL = 12;

/**
 * @param {Grid} grid
 * @param {number} left pixels before the first column
 */
export function lines(grid, left) {
  const spreads = perStep(grid).map(({ spread }) => spread);
  const [least, most] = [Math.min(...spreads.map(({ min }) => min)), Math.max(...spreads.map(({ max }) => max))];
  const mid = spreadOf(spreads.map(({ median }) => median)).median;
  const canvas = picture("step-lines", `Per step over ${grid.length} ranks: min ${ms(least)}, median ${ms(mid)}, max ${ms(most)}`, (context, width, height, colour) => {
    const wide = (width - left) / spreads.length;
    const x = (/** @type {number} */ column) => left + (column + 0.5) * wide;
    const y = (/** @type {number} */ value) => TOP + (1 - (value - least) / (most - least || 1)) * (height - TOP - BOTTOM);
    const trace = (/** @type {"min" | "median" | "p99" | "max"} */ key) => {
      context.beginPath();
      spreads.forEach((one, column) => context.lineTo(x(column), y(one[key])));
    };
    context.fillStyle = colour("accent");
    context.globalAlpha = 0.16;
    trace("p99");
    for (let column = spreads.length - 1; column >= 0; column--) context.lineTo(x(column), y(spreads[column].min));
    context.fill();
    context.globalAlpha = 1;
    context.lineWidth = 1.5;
    for (const [key, name, dash] of /** @type {["median" | "p99" | "max", string, number[]][]} */ ([["median", "accent", []], ["p99", "soft", [4, 3]], ["max", "critical", []]])) {
      context.strokeStyle = colour(name);
      context.setLineDash(dash);
      trace(key);
      context.stroke();
    }
    context.setLineDash([]);
    context.font = `11px ${getComputedStyle(context.canvas).fontFamily}`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    let below = -Infinity;
    for (const [key, name] of /** @type {["max" | "p99" | "median" | "min", string][]} */ ([["max", "critical"], ["p99", "soft"], ["median", "accent"], ["min", "soft"]])) {
      const at = Math.max(spreadOf(spreads.map((one) => one[key])).median, least);
      const line = Math.max(y(at), below + LABEL);
      if (line > height - 4) break;
      context.fillStyle = colour(name);
      context.fillText(`${key} ${ms(at).replace(/\sms$/, "")}`, left - 6, line);
      below = line;
    }
    const peak = spreads.findIndex(({ max }) => max === most);
    if (y(spreadOf(spreads.map(({ max }) => max)).median) - y(most) > LABEL) {
      context.textAlign = peak < spreads.length / 2 ? "left" : "right";
      context.fillStyle = colour("critical");
      context.fillText(ms(most), x(peak) + (peak < spreads.length / 2 ? 8 : -8), y(most) + 4);
    }
    context.textAlign = "left";
  });
  canvas.style.height = `${HEIGHT}px`;
  return canvas;
}
