// The collectives of one kind in one group, as the view of communication is told of them, and how they are named.

import { count, decimals, ms } from "../format.js";

/**
 * @typedef {object} Family the collectives of one kind in one group
 * @property {string} kind
 * @property {string} group
 * @property {string} parallelism what the group is for, as TP; "" if unknown
 * @property {number[]} ranks
 * @property {string[]} nodes
 * @property {number} size ranks of the group
 * @property {number} bus_factor
 * @property {number} calls
 * @property {number | null} mean_bytes null where unknown
 * @property {number} mean_transfer_us
 * @property {number} mean_wait_us
 * @property {number} far outliers: collectives that take far longer than others of their size
 * @property {number} peers groups like it
 * @property {number | null} slowdown times as long as usual in those; null without peers
 * @property {number | null} possible_bus_rate busbw that its links could have, bytes per second; null where unknown
 * @property {"calibration" | "table" | ""} possible_by who says so
 * @property {boolean} is_slow from where the rule slow-link says so
 * @property {number | null} alpha_us
 * @property {number | null} us_per_byte
 * @property {boolean} significant whether the line is to be believed
 * @property {number[]} step of each point; of many collectives not all are points
 * @property {number[]} last_us when the last rank arrives, after the first step's start
 * @property {number[]} bytes -1 where unknown
 * @property {number[]} transfer_us
 * @property {number[]} wait_us
 * @property {number[]} outlier
 */
/** @typedef {{name: string, ranks: number[], calls: number, last: number, waited_for_ms: number, waits_ms: number, slowdown: number | null, stands_out: boolean}} Node a step's means; last: share of its calls */

/** More nodes than this are counted, not named. */
const NAMED_NODES = 3;

export const kindOf = (/** @type {Pick<Family, "kind" | "group" | "parallelism">} */ { kind, group, parallelism }) => `${kind || "unknown"}${group || parallelism ? ` in ${[parallelism, "group", group].filter(Boolean).join(" ")}` : ""}`;
/** @param {string[]} nodes */
export const named = (nodes) => (nodes.length > NAMED_NODES ? count(nodes.length, "node") : nodes.join(", "));
/** @param {Family} family */
export const nameOf = (family) => `${kindOf(family)}, ${count(family.ranks.length, "rank")}${family.nodes.length > 1 ? ` on ${count(family.nodes.length, "node")}` : ""}`;
export const times = (/** @type {number} */ value) => `${decimals(value, 2)}×`;

/** @param {number} bytes */
export const size = (bytes) =>
  bytes >= 1e9 ? `${trim(bytes / 1e9)}\u00a0GB` : bytes >= 1e6 ? `${trim(bytes / 1e6)}\u00a0MB` : bytes >= 1e3 ? `${trim(bytes / 1e3)}\u00a0kB` : `${bytes}\u00a0B`;
const trim = (/** @type {number} */ value) => decimals(value, value < 10 ? 1 : 0).replace(/\.0$/, "");
export const time = (/** @type {number} */ us) => ms(us / 1000);
export const short = (/** @type {number} */ us) => time(us).replace(/\.0(?=\D)/, "");
export const rate = (/** @type {number} */ gbs) => `${decimals(gbs, gbs < 10 ? 2 : 0)}\u00a0GB/s`;
