// The part of the common clock that shows, and where its instants lie. Time is us after the report's origin; x is CSS
// pixels from the left edge of the lanes.

/** @typedef {{from: number, to: number}} Span us */

/** Narrower than this shows nothing more: traces count in ns. */
const NARROWEST_US = 0.05;

/**
 * A span no narrower than can be drawn and no wider than the job, moved to lie within it.
 * @param {Span} span
 * @param {Span} whole
 * @returns {Span}
 */
export function within({ from, to }, whole) {
  const width = Math.min(Math.max(to - from, NARROWEST_US), whole.to - whole.from);
  const start = Math.min(Math.max((from + to - width) / 2, whole.from), whole.to - width);
  return { from: start, to: start + width };
}

/**
 * Around an instant, which stays where it is. A factor above 1 shows more.
 * @param {Span} span
 * @param {number} at
 * @param {number} factor
 * @returns {Span}
 */
export const zoomed = ({ from, to }, at, factor) => ({ from: at - (at - from) * factor, to: at + (to - at) * factor });

/**
 * By a share of its width; a positive one shows what is later.
 * @param {Span} span
 * @param {number} share
 * @returns {Span}
 */
export const moved = ({ from, to }, share) => ({ from: from + share * (to - from), to: to + share * (to - from) });

/** Fingers that are nearer zoom as if they were so far apart, pixels. */
const NEAREST_PX = 24;

/**
 * With the instants that are under two fingers still under them.
 * @param {Span} span before the fingers moved
 * @param {number} width pixels of the lanes
 * @param {[number, number]} before x of both fingers, pixels from the left edge of the lanes
 * @param {[number, number]} now
 * @returns {Span}
 */
export function pinched({ from, to }, width, before, now) {
  const apart = (/** @type {[number, number]} */ [a, b]) => Math.max(Math.abs(b - a), NEAREST_PX);
  const middle = (/** @type {[number, number]} */ [a, b]) => (a + b) / 2;
  const perPixel = (to - from) / width;
  const at = from + middle(before) * perPixel;
  const zoomed = (perPixel * apart(before)) / apart(now);
  return { from: at - middle(now) * zoomed, to: at + (width - middle(now)) * zoomed };
}

/**
 * With room around, so that what is sought does not touch the edges.
 * @param {Span} span
 * @param {number} share of its width, at each side
 * @returns {Span}
 */
export const widened = ({ from, to }, share) => ({ from: from - share * (to - from), to: to + share * (to - from) });

/** Room at both ends of the record, as a share of it. */
const ROOM = 0.02;

/**
 * All that there is to show: the record, with a little room at its ends.
 * @param {[number, number]} record ms
 * @returns {Span}
 */
export const wholeOf = ([from, to]) => widened({ from: from * 1000, to: to * 1000 }, ROOM);

/**
 * Instants for the axis: multiples of 1, 2 or 5 times a power of ten, about `apart` pixels from each other.
 * @param {Span} span
 * @param {number} width pixels
 * @param {number} apart pixels
 */
export function ticks({ from, to }, width, apart) {
  const least = ((to - from) * apart) / width;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = power * ([1, 2, 5].find((factor) => factor * power >= least) ?? 10);
  const first = Math.ceil(from / step);
  return Array.from({ length: Math.max(0, Math.floor(to / step) - first + 1) }, (_, i) => (first + i) * step);
}
