// The curves of an opened rank below its lanes: memory as its allocator has it, and its GPU's clock and power, where traces
// or a capture have them. A value holds until the next one. Coordinates are those of `draw.js`.

import { size } from "../memory/contents.js";
import { firstAbove } from "./cull.js";
import { AXIS, GUTTER, isDrawn } from "./frame.js";

/**
 * @typedef {object} Curve
 * @property {number} rank
 * @property {string} title
 * @property {number} top CSS pixels
 * @property {number} height
 * @property {Float64Array} times us after the origin
 * @property {number[]} values
 * @property {number[] | null} above a second curve, never below the first
 * @property {number} least of the scale: where the curve's lane ends below
 * @property {number} most of both curves
 * @property {string} range the values that it has, as text
 * @property {(value: number) => string} show
 * @property {string} of what the values are: "allocated"
 * @property {string} ofAbove
 */

const HEIGHT = 26;
const GAP = 4;
/** Below its largest value a scale of clocks or watts shows at least this share. */
const LEAST_SHARE = 0.1;

/** @param {number[]} values */
const largest = (values) => values.reduce((most, value) => Math.max(most, value), 0);
/** @param {number} value */
const whole = (value) => Math.round(value).toLocaleString("en");
/** @param {string} unit @returns {(value: number) => string} */
const inUnit = (unit) => (value) => `${whole(value)}\u00a0${unit}`;

/**
 * The curves of a rank, from a height on.
 * @param {Pick<import("./rows.js").Slice["ranks"][number], "rank" | "memory" | "gpu">} of
 * @param {number} shift us
 * @param {number} top CSS pixels
 * @returns {Curve[]}
 */
export function curvesOf({ rank, memory, gpu }, shift, top) {
  const of = (/** @type {string} */ title, /** @type {number[]} */ time_us, /** @type {(number | null)[]} */ given, /** @type {Pick<Curve, "show" | "of" | "ofAbove" | "above">} */ more) => {
    const known = given.flatMap((value, i) => (value === null ? [] : [i]));
    const values = known.map((i) => Number(given[i]));
    const most = largest(more.above ?? values);
    const lowest = values.reduce((least, value) => Math.min(least, value), most);
    const { show } = more;
    const range = more.above ? `max ${show(largest(values))} ${more.of}, ${show(most)} ${more.ofAbove}` : lowest < most ? `${whole(lowest)} – ${show(most)}` : show(most);
    const least = more.above ? 0 : Math.max(0, lowest - Math.max(most - lowest, LEAST_SHARE * most));
    return known.length && most > 0 ? [{ rank, title, top: 0, height: HEIGHT, times: Float64Array.from(known, (i) => time_us[i] + shift), values, least, most, range, ...more }] : [];
  };
  const found = [
    ...of("memory", memory.time_us, memory.allocated, { above: memory.reserved, show: size, of: "allocated", ofAbove: "reserved" }),
    ...of("SM clock", gpu.time_us, gpu.sm_mhz, { above: null, show: inUnit("MHz"), of: "", ofAbove: "" }),
    ...of("power", gpu.time_us, gpu.power_w, { above: null, show: inUnit("W"), of: "", ofAbove: "" }),
  ];
  return found.map((curve, i) => ({ ...curve, top: top + i * (HEIGHT + GAP) }));
}

/** How high some curves are, with what is between them. @param {Curve[]} curves */
export const heightOf = (curves) => curves.length * (HEIGHT + GAP);

/**
 * What a curve is at an instant; "" before its first value.
 * @param {Curve} curve
 * @param {number} at us
 */
export function valueAt({ times, values, above, show, of, ofAbove }, at) {
  const i = firstAbove(times, at) - 1;
  if (i < 0) return "";
  return [`${show(values[i])} ${of}`.trim(), above && `${show(above[i])} ${ofAbove}`].filter(Boolean).join(", ");
}

/**
 * All curves of a rank at an instant: "memory: 3.10 GB allocated, 4.00 GB reserved".
 * @param {Curve[]} curves
 * @param {number} rank
 * @param {number} at us
 * @returns {[string, string][]}
 */
export const valuesAt = (curves, rank, at) =>
  curves.flatMap((curve) => {
    const said = curve.rank === rank ? valueAt(curve, at) : "";
    return said ? [/** @type {[string, string]} */ ([curve.title, said])] : [];
  });

/**
 * @param {CanvasRenderingContext2D} context
 * @param {(name: string) => string} colour
 * @param {import("./draw.js").Scene} scene
 * @param {import("./draw.js").X} x
 */
export function curves(context, colour, scene, x) {
  const { laid, span } = scene;
  for (const curve of laid.curves) {
    if (!isDrawn(curve, scene)) continue;
    const { times, values, above, least, most, range } = curve;
    const bottom = AXIS + curve.top + curve.height;
    const y = (/** @type {number} */ value) => bottom - ((value - least) / Math.max(most - least, 1e-9)) * (curve.height - 1);
    const first = Math.max(0, firstAbove(times, span.from) - 1);
    const path = (/** @type {number[]} */ of) => {
      context.beginPath();
      context.moveTo(Math.max(GUTTER, x(times[first])), bottom);
      let at = first;
      for (; at < times.length && times[at] < span.to; at++) {
        context.lineTo(Math.max(GUTTER, x(times[at])), y(of[at]));
        context.lineTo(x(at + 1 < times.length ? times[at + 1] : span.to), y(of[at]));
      }
      context.lineTo(x(at < times.length ? times[at] : span.to), bottom);
    };
    for (const [of, fill] of /** @type {[number[], string][]} */ ([...(above ? [[above, "reserved"]] : []), [values, "soft"]])) {
      path(of);
      context.globalAlpha = fill === "soft" ? 0.6 : 1;
      context.fillStyle = colour(fill);
      context.fill();
    }
    context.globalAlpha = 1;
    context.fillStyle = colour("line");
    context.fillRect(GUTTER, bottom, x(span.to) - GUTTER, 1);
    context.fillStyle = colour("card");
    context.globalAlpha = 0.8;
    context.fillRect(GUTTER + 2, AXIS + curve.top, context.measureText(range).width + 6, 13);
    context.globalAlpha = 1;
    context.fillStyle = colour("ink");
    context.fillText(range, GUTTER + 5, AXIS + curve.top + 7);
  }
}
