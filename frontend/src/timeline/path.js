// The critical path through the ranks, as far as it shows. Pure. Times are us after the origin.

/** @typedef {{step: number, rank: number, from: number, to: number}} Leg a stretch of the path on one rank in one step */

/**
 * @param {import("../model.js").PathStep[]} path
 * @param {string} origin ns
 * @returns {Leg[]}
 */
export function legs(path, origin) {
  /** @type {Leg[]} */
  const found = [];
  for (const { step, start_ns, pieces } of path) {
    const start = (start_ns - Number(origin)) / 1e3;
    for (const { rank, start_ms, ms } of pieces) {
      const [from, to] = [start + start_ms * 1e3, start + (start_ms + ms) * 1e3];
      const last = found[found.length - 1];
      if (last && last.rank === rank && last.step === step) last.to = to;
      else found.push({ step, rank, from, to });
    }
  }
  return found;
}

/**
 * The legs of a span that are long enough to be seen; one that is not goes on with the leg before it.
 * @param {Leg[]} all in order of time
 * @param {import("./scale.js").Span} span
 * @param {number} least us
 */
export function seen(all, { from, to }, least) {
  /** @type {Leg[]} */
  const found = [];
  for (const leg of all) {
    if (leg.to < from || leg.from > to) continue;
    const last = found[found.length - 1];
    if (last && (leg.to - leg.from < least || (last.rank === leg.rank && last.step === leg.step))) last.to = leg.to;
    else found.push({ ...leg });
  }
  return found;
}

/**
 * How much of a step's path lies on a rank, us.
 * @param {Leg[]} all
 * @param {number} step
 * @param {number} rank
 */
export const onRank = (all, step, rank) => all.reduce((sum, leg) => (leg.step === step && leg.rank === rank ? sum + leg.to - leg.from : sum), 0);
