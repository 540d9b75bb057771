// The predicted step over bucket sizes, with its range, and runs with other buckets as they were measured. The x axis is
// logarithmic in MiB, y is ms from the least to the most that shows; coordinates are CSS pixels of the picture.

import { ms } from "../format.js";

/** @typedef {import("../../schema.js").PlanAnswer} PlanAnswer */

const HEIGHT = 240;
const LEFT = 52;
const RIGHT = 16;
const TOP = 14;
const BOTTOM = 38;

/**
 * @param {PlanAnswer} answer
 * @param {number | null} chosen MiB
 * @param {number} width
 */
export function chart({ plan, measured }, chosen, width) {
  const curve = plan.curves.find(({ field }) => field === "bucket_mb");
  const picture = svg("svg", { class: "plan-chart", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img" });
  if (!curve) return picture;
  const sizes = curve.values.map(Number);
  const all = [...sizes, ...measured.map(({ bucket_mb }) => bucket_mb), ...(chosen ? [chosen] : [])].map(Math.log10);
  const [left, right] = [Math.min(...all), Math.max(...all)];
  const times = [...curve.points.flatMap(({ low_ms, high_ms }) => [low_ms, high_ms]), ...measured.map(({ step_ms }) => step_ms)];
  const [least, most] = [Math.min(...times), Math.max(...times)];
  const room = Math.max(0.05 * (most - least), 0.02 * most);
  const x = (/** @type {number} */ size) => LEFT + ((Math.log10(size) - left) / (right - left || 1)) * (width - LEFT - RIGHT);
  const y = (/** @type {number} */ time) => TOP + ((most + room - time) / (most - least + 2 * room)) * (HEIGHT - TOP - BOTTOM);
  for (const time of ticks(least, most)) {
    picture.append(svg("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: y(time), y2: y(time) }), text(`${time}`, LEFT - 6, y(time) + 4, "end"));
  }
  picture.append(text("ms", LEFT - 6, TOP - 2, "end"), text("bucket_cap_mb", width - RIGHT, HEIGHT - 4, "end"));
  let free = -Infinity;
  for (const size of sizes) {
    if (x(size) - free < 30) continue;
    free = x(size);
    picture.append(text(`${size}`, x(size), HEIGHT - BOTTOM + 16, "middle"));
  }
  const upper = curve.points.map(({ high_ms }, i) => `${x(sizes[i])},${y(high_ms)}`);
  const lower = curve.points.map(({ low_ms }, i) => `${x(sizes[i])},${y(low_ms)}`).reverse();
  picture.append(svg("polygon", { class: "range", points: [...upper, ...lower].join(" ") }));
  picture.append(svg("polyline", { class: "curve", points: curve.points.map(({ step_ms }, i) => `${x(sizes[i])},${y(step_ms)}`).join(" ") }));
  if (chosen) picture.append(svg("line", { class: "chosen", x1: x(chosen), x2: x(chosen), y1: TOP, y2: HEIGHT - BOTTOM }));
  for (const { run, bucket_mb, step_ms } of measured) {
    const point = svg("circle", { class: "measured", cx: x(bucket_mb), cy: y(step_ms), r: 5 });
    const title = svg("title", {});
    title.textContent = `${run}: ${ms(step_ms)} measured`;
    point.append(title);
    const late = x(bucket_mb) > width / 2;
    picture.append(point, text(`${run} ${step_ms.toFixed(1)}`, x(bucket_mb) + (late ? -9 : 9), y(step_ms) - 8, late ? "end" : "start"));
  }
  picture.setAttribute("aria-label", `Step over bucket_cap_mb: ${sizes.map((size, i) => `${size}: ${ms(curve.points[i].step_ms)}`).join(", ")}`);
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
  const element = svg("text", { x, y, "text-anchor": anchor });
  element.textContent = words;
  return element;
}

/**
 * @param {string} tag
 * @param {Record<string, string | number>} attributes
 */
function svg(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  return element;
}
