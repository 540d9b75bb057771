// Numbers and lists as words. Every number carries its unit; a no-break space keeps the two together.

import { FINE_MS, LEAST_SHARE, SUMS, TIMES, WHOLE_SHARE, WIDE_MS } from "./rounding.js";

const NBSP = "\u00a0";
// Amounts below this have a digit.
const FEW = 100;

/**
 * A number with so many digits after its point; a half is rounded to the even digit, as Python's `wording` does it.
 * @param {number} value
 * @param {number} digits
 */
function fixed(value, digits) {
  const scaled = value * 10 ** digits;
  // Only a number with so few bits after its point is half way between two of so many digits.
  const isHalf = Number.isInteger(value * 2 ** (digits + 1)) && Number.isInteger(2 * scaled) && !Number.isInteger(scaled);
  return isHalf ? ((2 * Math.round(scaled / 2)) / 10 ** digits).toFixed(digits) : value.toFixed(digits);
}

/**
 * The number that `decimals` shows.
 * @param {number} value
 * @param {number} digits
 */
export const rounded = (value, digits) => Number(fixed(value, digits));

/**
 * A number with so many digits after its point: "1,206.8".
 * @param {number} value
 * @param {number} digits
 */
export function decimals(value, digits) {
  const text = fixed(value, digits);
  return Math.abs(value) < 999 ? text : text.replace(/^-?\d+/, (whole) => whole.replace(/\d(?=(\d{3})+$)/g, "$&,"));
}

/**
 * A duration.
 * @param {number} value ms
 */
export function ms(value) {
  const size = Math.abs(value);
  const [, unit, name, digits] = TIMES.find(([least]) => size >= least) ?? [0, 1, "ms", 0];
  return `${value < 0 ? "−" : ""}${decimals(size / unit, digits)}${NBSP}${name}`;
}

/**
 * What the largest part of a sum is shown as: what the total and the other parts leave of it as they are shown.
 * @param {number} total ms
 * @param {number[]} others ms
 */
export function remainder(total, others) {
  const digits = sumDigits(total);
  return others.reduce((left, part) => left - rounded(part, digits), rounded(total, digits));
}

/**
 * With how many digits a sum and its parts are shown.
 * @param {number} total ms
 */
export const sumDigits = (total) => SUMS.find(([least]) => total >= least)?.[1] ?? 3;

/**
 * The sum of durations as `ms` shows them, so that what a reader adds up is the sum that stands below.
 * @param {number[]} values ms
 */
export const sumShown = (values) => values.reduce((sum, value) => sum + shown(value), 0);

/** @param {number} value ms */
function shown(value) {
  const [, unit, , digits] = TIMES.find(([least]) => Math.abs(value) >= least) ?? [0, 1, "ms", 0];
  return rounded(value / unit, digits) * unit;
}

/**
 * A share of the whole.
 * @param {number} share 0 to 1
 */
export function percent(share) {
  if (share > 0 && share < LEAST_SHARE) return `<${LEAST_SHARE * 100}${NBSP}%`;
  return `${decimals(share * 100, share >= WHOLE_SHARE || share === 0 ? 0 : 1)}${NBSP}%`;
}

/**
 * Where a time lies: "52.1 to 54.9 ms", "48 to 55 ms" where that is wide, and "0.21 to 0.34 ms" below 1 ms.
 * @param {number} least ms
 * @param {number} most ms
 */
export function range(least, most) {
  const digits = most - least >= WIDE_MS ? 0 : most >= FINE_MS ? 1 : 2;
  return `${decimals(least, digits)} to ${decimals(most, digits)}${NBSP}ms`;
}

/**
 * Where a predicted time lies in 8 of 10 jobs: "80 % interval 52.1 to 54.9 ms".
 * @param {number} least ms
 * @param {number} most ms
 */
export const interval = (least, most) => `80${NBSP}% interval ${range(least, most)}`;

/**
 * Money and energy as the command line has them: "117.89 EUR, up to 12.5 kWh"; "" where neither is known.
 * @param {number | null} money
 * @param {number | null} energy kWh
 * @param {string} currency "" where nobody named it
 */
export function moneyAndEnergy(money, energy, currency) {
  const exactly = (/** @type {number} */ value, /** @type {number} */ digits) =>
    value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const parts = [];
  if (money !== null) parts.push(exactly(money, 2) + (currency && `${NBSP}${currency}`));
  if (energy !== null) parts.push(`up to ${exactly(energy, energy >= FEW ? 0 : 1)}${NBSP}kWh`);
  return parts.join(", ");
}

/**
 * A time of day, as the reader's clock has it: "2026-11-23 09:05".
 * @param {number} seconds since the epoch
 */
export const clockTime = (seconds) => new Date(seconds * 1000).toLocaleString("sv-SE").slice(0, 16);

/**
 * A change, with its sign; nothing is no change.
 * @param {number} value
 * @param {number} digits
 */
export function signed(value, digits) {
  const text = decimals(Math.abs(value), digits);
  return Number(text) === 0 ? text : `${value < 0 ? "−" : "+"}${text}`;
}

/**
 * @param {number} n
 * @param {string} noun in the singular
 */
export function count(n, noun) {
  return `${n.toLocaleString("en")}${NBSP}${noun}${n === 1 ? "" : "s"}`;
}

/** To make one takes longer than to use it. */
const TENTHS = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/**
 * Calls a step, which need not be whole.
 * @param {number} value
 */
export const perStep = (value) => TENTHS.format(value);

/**
 * Whole numbers as ranges: [0, 2, 3, 4] is "0, 2-4".
 * @param {readonly number[]} numbers ascending
 */
export function ranges(numbers) {
  /** @type {[number, number][]} */
  const runs = [];
  for (const n of numbers) {
    const last = runs[runs.length - 1];
    if (last && n === last[1] + 1) last[1] = n;
    else runs.push([n, n]);
  }
  return runs.map(([a, b]) => (a === b ? `${a}` : b === a + 1 ? `${a}, ${b}` : `${a}-${b}`)).join(", ");
}

/** A list of numbers that is read at a glance has so many characters. */
const BRIEF = 40;

/**
 * The same in a few words where they are many: [0, 8, 16, ..., 504] is "0-504, every 8th".
 * @param {readonly number[]} numbers ascending
 */
export function briefly(numbers) {
  const text = ranges(numbers);
  if (text.length <= BRIEF) return text;
  const [first, last, by] = [numbers[0], numbers[numbers.length - 1], numbers[1] - numbers[0]];
  if (numbers.every((number, i) => number === first + i * by)) return `${first}-${last}, every ${by}${{ 2: "nd", 3: "rd" }[by] ?? "th"}`;
  return `${text.slice(0, text.lastIndexOf(",", BRIEF))}, … (${numbers.length})`;
}

/**
 * "rank 1", "ranks 0, 2-4", "all 8 ranks".
 * @param {readonly number[]} some
 * @param {readonly number[]} all
 * @param {string} noun
 */
export function among(some, all, noun) {
  if (some.length > 1 && some.length === all.length) return `all ${count(all.length, noun)}`;
  return `${noun}${some.length === 1 ? "" : "s"} ${ranges(some)}`;
}
