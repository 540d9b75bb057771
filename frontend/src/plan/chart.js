// The predicted step over one thing that can be otherwise, with its range, and runs with other buckets as they were
// measured. The x axis is logarithmic in the values, or has a place for each where they are no positive numbers; y is ms
// from the least to the most that shows; coordinates are CSS pixels of the picture.

import { svg } from "../dom.js";
import { decimals, ms, percent } from "../format.js";
import { shownStop } from "./stops.js";

/** @typedef {import("../../schema.js").PlanResult} PlanResult */

const HEIGHT = 250;
const LEFT = 52;
const RIGHT = 16;
const TOP = 14;
const BOTTOM = 48;

/** Fields that a curve can be drawn over. */
export const CURVES = ["bucket_mb", "links", "ranks", "sharding", "prefetch", "accumulate", "workers"];

/**
 * @param {PlanResult} plan with a curve
 * @param {string | null} chosen a value of the field
 * @param {number} width
 */
export function chart(plan, chosen, width) {
  const { measured } = plan;
  const [curve] = plan.curves;
  const picture = svg("svg", { class: "plan-chart", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img" });
  if (!curve) return picture;
  const values = curve.values.map(String);
  const isLog = curve.values.every((value) => Number(value) > 0);
  const place = (/** @type {string | number} */ value) => (isLog ? Math.log10(Number(value)) : values.indexOf(String(value)));
  const marked = chosen !== null && (isLog || values.includes(chosen)) ? place(chosen) : null;
  const all = [...values.map(place), ...measured.map(({ bucket_mb }) => Math.log10(bucket_mb)), ...(marked === null ? [] : [marked])];
  const [left, right] = [Math.min(...all), Math.max(...all)];
  const times = [...curve.points.flatMap(({ low_ms, high_ms }) => [low_ms, high_ms]), ...measured.map(({ step_ms }) => step_ms), plan.now_ms];
  const [least, most] = [Math.min(...times), Math.max(...times)];
  const room = Math.max(0.05 * (most - least), 0.02 * most);
  const x = (/** @type {number} */ at) => LEFT + ((at - left) / (right - left || 1)) * (width - LEFT - RIGHT);
  const y = (/** @type {number} */ time) => TOP + ((most + room - time) / (most - least + 2 * room)) * (HEIGHT - TOP - BOTTOM);
  for (const time of ticks(least, most)) {
    picture.append(svg("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: y(time), y2: y(time) }), text(time.toLocaleString("en", { maximumSignificantDigits: 6 }), LEFT - 6, y(time) + 4, "end"));
  }
  picture.append(text("ms", LEFT - 6, TOP - 2, "end"));
  picture.append(svg("line", { class: "now", x1: LEFT, x2: width - RIGHT, y1: y(plan.now_ms), y2: y(plan.now_ms) }), text("now", width - RIGHT, y(plan.now_ms) - 4, "end"));
  let free = -Infinity;
  for (const [i, value] of values.entries()) {
    if (x(place(value)) - free < 30) continue;
    free = x(place(value));
    const anchor = isLog || (i > 0 && i < values.length - 1) ? "middle" : i ? "end" : "start";
    picture.append(text(shownStop(value), x(place(value)), HEIGHT - BOTTOM + 16, anchor));
    const { scaling } = curve.points[i];
    if (scaling) picture.append(text(percent(scaling.efficiency), x(place(value)), HEIGHT - BOTTOM + 30, "middle"));
  }
  picture.append(text(curve.points[0].scaling ? "ranks; efficiency" : curve.field === "bucket_mb" ? "bucket_cap_mb" : "", LEFT, HEIGHT - 6, "start"));
  const at = (/** @type {number} */ i) => x(place(values[i]));
  const upper = curve.points.map(({ high_ms }, i) => `${at(i)},${y(high_ms)}`);
  const lower = curve.points.map(({ low_ms }, i) => `${at(i)},${y(low_ms)}`).reverse();
  if (curve.values.some((value) => Number.isNaN(Number(value)))) {
    for (const [i, { low_ms, step_ms, high_ms }] of curve.points.entries()) {
      picture.append(svg("rect", { class: "range", x: at(i) - 8, width: 16, y: y(high_ms), height: y(low_ms) - y(high_ms) }), svg("circle", { class: "point", cx: at(i), cy: y(step_ms), r: 4 }));
    }
  } else {
    picture.append(svg("polygon", { class: "range", points: [...upper, ...lower].join(" ") }));
    picture.append(svg("polyline", { class: "curve", points: curve.points.map(({ step_ms }, i) => `${at(i)},${y(step_ms)}`).join(" ") }));
  }
  if (marked !== null) picture.append(svg("line", { class: "chosen", x1: x(marked), x2: x(marked), y1: TOP, y2: HEIGHT - BOTTOM }));
  for (const { run, bucket_mb, step_ms } of measured) {
    const here = x(Math.log10(bucket_mb));
    const point = svg("circle", { class: "measured", cx: here, cy: y(step_ms), r: 5 });
    point.append(svg("title", {}, `${run}: ${ms(step_ms)} measured`));
    const late = here > width / 2;
    picture.append(point, text(`${run} ${decimals(step_ms, 1)}`, here + (late ? -9 : 9), y(step_ms) - 8, late ? "end" : "start"));
  }
  picture.setAttribute("aria-label", `Step over ${curve.field}: ${values.map((value, i) => `${value}: ${ms(curve.points[i].step_ms)}`).join(", ")}`);
  return picture;
}

/**
 * Round numbers between two.
 * @param {number} least
 * @param {number} most
 */
export function ticks(least, most) {
  const wanted = Math.max(most - least, 1e-9) / 4;
  const power = 10 ** Math.floor(Math.log10(wanted));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((size) => size >= wanted) ?? wanted;
  const first = Math.ceil(least / step);
  return Array.from({ length: Math.floor(most / step) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(6)));
}

/**
 * @param {string} words
 * @param {number} x
 * @param {number} y
 * @param {string} anchor
 */
function text(words, x, y, anchor) {
  return svg("text", { x, y, "text-anchor": anchor }, words);
}
