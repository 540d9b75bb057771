// Logarithmic axes. Values are positive; places are shares of the axis, 0 to 1.

/** @typedef {{low: number, high: number}} Axis powers of ten at both ends, not always whole */

/**
 * An axis that holds all values, with some room at its ends.
 * @param {number[]} values
 * @returns {Axis}
 */
export function axisOf(values) {
  const logs = values.filter((value) => value > 0).map(Math.log10);
  const [low, high] = [Math.min(...logs), Math.max(...logs)];
  const room = Math.max(0.15, 0.08 * (high - low), (0.6 - (high - low)) / 2);
  return logs.length ? { low: low - room, high: high + room } : { low: 0, high: 1 };
}

/**
 * @param {Axis} axis
 * @param {number} value
 */
export const place = ({ low, high }, value) => (Math.log10(value) - low) / (high - low);

/**
 * Values for ticks: powers of ten; where fewer than three of them show, twice and five times them too, and where these
 * are fewer than three, all digits.
 * @param {Axis} axis
 */
export function logTicks({ low, high }) {
  const digits = [[1], [1, 2, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9]];
  const powers = Array.from({ length: Math.max(0, Math.floor(high) - Math.floor(low) + 1) }, (_, i) => Math.floor(low) + i);
  const choices = digits.map((some) =>
    powers
      .flatMap((power) => some.map((digit) => digit * 10 ** power))
      .filter((value) => Math.log10(value) >= low && Math.log10(value) <= high),
  );
  return choices.find((values) => values.length >= 3) ?? choices[2];
}
