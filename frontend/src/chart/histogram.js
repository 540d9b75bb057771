// How long the gaps of one owner are, as a table of lengths whose bars are sums: a few long gaps and many short ones are
// different faults.

import { h } from "../dom.js";
import { count, decimals, ms, percent } from "../format.js";
import { ownerName } from "../model.js";

/** @typedef {import("../../schema.js").GapLengths} GapLengths */
/** @typedef {import("../../schema.js").GapBin} GapBin */

/** More rows than this are joined to powers of ten. */
const MOST_ROWS = 7;

/**
 * @param {GapLengths} gaps
 * @returns {GapBin[]} of powers of ten where these are too many to read
 */
export function rowsOf({ bins }) {
  if (bins.length <= MOST_ROWS) return bins;
  /** @type {Map<number, GapBin>} */
  const decades = new Map();
  for (const bin of bins) {
    // Half a digit more, since the logarithm of a power of ten may fall short of it.
    const power = Math.floor(Math.log10(bin.from_ms * 1.5));
    const joined = decades.get(power) ?? { from_ms: 10 ** power, to_ms: 10 ** (power + 1), count: 0, sum_ms: 0 };
    joined.count += bin.count;
    joined.sum_ms += bin.sum_ms;
    decades.set(power, joined);
  }
  return [...decades.values()];
}

/**
 * How few of the longest gaps make most of the sum: "4 of 82 gaps are 69 % of the sum"; by whole rows, and "" where no
 * few do.
 * @param {GapBin[]} rows the shortest first
 */
export function concentration(rows) {
  const [all, total] = rows.reduce(([n, sum], { count: more, sum_ms }) => [n + more, sum + sum_ms], [0, 0]);
  let [some, sum] = [0, 0];
  for (const row of [...rows].reverse()) {
    some += row.count;
    sum += row.sum_ms;
    if (sum >= total / 2) break;
  }
  return some > 0 && some <= all / 2 ? `${some.toLocaleString("en")} of ${count(all, "gap")} are ${percent(sum / total)} of the sum` : "";
}

/**
 * @param {GapLengths} gaps
 * @param {string} owner
 */
export function histogram(gaps, owner) {
  const rows = rowsOf(gaps);
  const most = rows.reduce((longest, { sum_ms }) => Math.max(longest, sum_ms), Math.max(gaps.shorter_ms, Number.MIN_VALUE));
  const line = (/** @type {string} */ length, /** @type {string} */ number, /** @type {number} */ sum_ms) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, length),
      h("td", {}, number),
      h("td", { class: "length" }, sum_ms > 0 && h("i", { class: `owner-${owner}`, style: `width: ${decimals((100 * sum_ms) / most, 1)}%` })),
      h("td", {}, digits(sum_ms)),
    );
  return h(
    "table",
    { class: "histogram textured", "aria-label": `Gaps of ${ownerName(owner)} by length` },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "length, ms"), h("th", { scope: "col" }, "gaps"), h("td"), h("th", { scope: "col" }, "sum, ms"))),
    h(
      "tbody",
      {},
      [...rows].reverse().map(({ from_ms, to_ms, count: number, sum_ms }) => line(`${plain(from_ms)} to ${plain(to_ms)}`, number.toLocaleString("en"), sum_ms)),
      gaps.shorter_ms > 0 ? line(`below ${plain(Number(gaps.kept_from_ms.toPrecision(1)))}`, "–", gaps.shorter_ms) : null,
    ),
  );
}

/**
 * "82 gaps, 50.3 ms, and 1.2 ms in shorter ones".
 * @param {GapLengths} gaps
 */
export function gapSum({ bins, shorter_ms }) {
  const [number, sum] = bins.reduce(([n, total], bin) => [n + bin.count, total + bin.sum_ms], [0, 0]);
  const shorter = shorter_ms > 0 ? `${number ? ", and " : ""}${ms(shorter_ms)} in ${number ? "shorter ones" : "gaps too short to count"}` : "";
  return `${number ? `${count(number, "gap")}, ${ms(sum)}` : ""}${shorter}`;
}

const plain = (/** @type {number} */ value) => value.toLocaleString("en", { maximumSignificantDigits: 1 });
const digits = (/** @type {number} */ value) => (value > 0 && value < 0.05 ? "< 0.05" : value ? decimals(value, 1) : "0");
