// What of a row is worth drawing. A row's events follow each other and do not overlap, so binary search finds the first
// that shows; and of those within one pixel only one is drawn, however many there are: a row costs its width, not its
// events.

/** @typedef {import("./scale.js").Span} Span */
/** @typedef {{index: number, x: number, width: number, count: number}} Drawn pixels; `count` events from `index` on */

/**
 * Index of the first value above a limit; `values` ascend.
 * @param {Float64Array} values
 * @param {number} limit
 * @param {number} [from] where to begin
 * @returns {number}
 */
export function firstAbove(values, limit, from = 0) {
  let low = from;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}

/**
 * @param {Float64Array} starts
 * @param {Float64Array} ends
 * @param {Span} span
 * @param {number} width pixels of the span
 * @returns {Drawn[]}
 */
export function visible(starts, ends, { from, to }, width) {
  const scale = width / (to - from);
  /** @type {Drawn[]} */
  const drawn = [];
  for (let i = firstAbove(ends, from); i < starts.length && starts[i] < to; ) {
    const left = Math.max(0, (starts[i] - from) * scale);
    const right = Math.min(width, (ends[i] - from) * scale);
    if (right - left >= 1) {
      drawn.push({ index: i, x: left, width: right - left, count: 1 });
      i += 1;
      continue;
    }
    const pixel = Math.floor(left);
    const next = Math.max(i + 1, firstAbove(ends, from + (pixel + 1) / scale, i));
    drawn.push({ index: i, x: pixel, width: 1, count: next - i });
    i = next;
  }
  return drawn;
}

/**
 * The event at an instant, or the nearest within a few pixels' time; -1 if there is none.
 * @param {Float64Array} starts
 * @param {Float64Array} ends
 * @param {number} at
 * @param {number} reach
 */
export function eventAt(starts, ends, at, reach) {
  const after = firstAbove(ends, at);
  const gap = (/** @type {number} */ i) =>
    i < 0 || i >= starts.length ? Infinity : Math.max(0, starts[i] - at, at - ends[i]);
  const nearest = gap(after) <= gap(after - 1) ? after : after - 1;
  return gap(nearest) <= reach ? nearest : -1;
}
