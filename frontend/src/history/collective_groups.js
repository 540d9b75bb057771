// What the picture of collectives over hours shades, says and lists.

import { decimals, ms, percent } from "../format.js";
import { instant } from "./clock.js";

/** @typedef {import("./model.js").CollectivesOverTime} CollectivesOverTime */
/** @typedef {import("./model.js").GroupOverTime} GroupOverTime */
/** @typedef {"busbw" | "skew"} Quantity */

/**
 * How dark each bin of a group is before scaling: of bandwidth the share below the group's best, of skew the wait in ms.
 * @param {GroupOverTime} group
 * @param {Quantity} quantity
 * @returns {(number | null)[]}
 */
export function excessOf(group, quantity) {
  if (quantity === "skew") return group.wait_ms;
  const best = bestOf(group);
  return group.busbw_gbs.map((value) => (value === null || best <= 0 ? null : Math.max(0, 1 - value / best)));
}

/** The bandwidth that one bin in twenty exceeds, GB/s; 0 where nothing is known. @param {GroupOverTime} group */
export function bestOf({ busbw_gbs }) {
  const known = /** @type {number[]} */ (busbw_gbs.filter((value) => value !== null)).sort((a, b) => a - b);
  return known[Math.floor(0.95 * (known.length - 1))] ?? 0;
}

/**
 * A bin of a group in words.
 * @param {GroupOverTime} group
 * @param {number[]} edges
 * @param {number} bin
 */
export function saidOf(group, edges, bin) {
  const [busbw, low, wait] = [group.busbw_gbs[bin], group.low_gbs[bin], group.wait_ms[bin]];
  const at = `${group.name}, ${instant(edges[bin])} to ${instant(edges[bin + 1])}`;
  if (busbw === null || low === null) return `${at}: no calls`;
  const best = bestOf(group);
  const below = best > 0 && busbw < 0.99 * best ? `, ${percent(1 - busbw / best)} below its best` : "";
  const skew = wait === null ? "not all ranks recorded" : `arrival skew ${ms(wait)}`;
  return `${at}: ${gbs(busbw)} busbw${below}, slowest twentieth ${gbs(low)}; ${skew}`;
}

/**
 * The picture's numbers.
 * @param {CollectivesOverTime} over
 * @returns {import("../views.js").Table}
 */
export const collectiveTable = ({ edges_s, groups }) => ({
  heads: ["group", "from", "busbw, GB/s", "slowest twentieth, GB/s", "arrival skew, ms"],
  rows: groups.flatMap((group) => edges_s.slice(0, -1).map((at, bin) => [group.name, instant(at), group.busbw_gbs[bin], group.low_gbs[bin], group.wait_ms[bin]])),
});

/** @param {number} value */
export const gbs = (value) => `${decimals(value, value < 10 ? 2 : 1)}\u00a0GB/s`;
