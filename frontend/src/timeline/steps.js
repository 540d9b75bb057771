// The steps of a rank on the common clock, us after the origin, and where an axis begins. Pure.

/** @typedef {import("./scale.js").Span} Span */
/** @typedef {Span & {step: number}} Step */

/**
 * @param {Pick<import("../model.js").Views, "ranks" | "steps" | "clock_ms" | "step_ms">} views
 * @param {number} rank
 * @returns {Step[]}
 */
export function stepsOf({ ranks, steps, clock_ms, step_ms }, rank) {
  const row = ranks.indexOf(rank);
  return steps.flatMap((step, column) => {
    const [start, length] = [clock_ms[row]?.[column], step_ms[row]?.[column]];
    return start === undefined || start === null || !length ? [] : [{ step, from: start * 1000, to: (start + length) * 1000 }];
  });
}

/**
 * The step that most of a span lies in, or the next to it; null without steps.
 * @param {Step[]} steps
 * @param {Span} span
 */
export function stepAt(steps, { from, to }) {
  const within = (/** @type {Step} */ one) => Math.min(one.to, to) - Math.max(one.from, from);
  return steps.reduce((/** @type {Step | null} */ best, one) => (best && within(best) >= within(one) ? best : one), null);
}
