// A job's hours as the server tells them (`view/history.py`), and what follows from them. Bins are of equally many steps;
// bin j is from edges_s[j] to edges_s[j + 1], s since 1970.

/**
 * @typedef {object} JobEvent
 * @property {string} kind
 * @property {"job" | "node" | "rank"} level
 * @property {string} what
 * @property {string} cost
 * @property {number} cost_s
 * @property {number[]} ranks
 * @property {number} first_step
 * @property {number} last_step
 * @property {number} begin_s
 * @property {number} end_s
 * @property {string | null} before run of the last capture before it
 * @property {string | null} after run of the first capture within it
 */

/** @typedef {{step: number, at_s: number | null, run: string | null}} Capture */

/**
 * @typedef {object} HeatLevels
 * @property {number[]} ranks the first of each row
 * @property {number} of ranks of a row
 * @property {string[]} nodes
 * @property {number} level share above the median rank that a level is
 * @property {string} median levels of the bins' medians, a byte each, base64
 * @property {string} longest the same of their longest steps
 */

/**
 * @typedef {object} GroupOverTime the calls of one kind and size in a group, by bins of time
 * @property {string} name
 * @property {number} calls
 * @property {number} transfer_s
 * @property {(number | null)[]} busbw_gbs bus bandwidth of the median call of each bin
 * @property {(number | null)[]} low_gbs that of the slowest twentieth
 * @property {(number | null)[]} wait_ms what the first rank waits for the last one, median
 */

/** @typedef {{edges_s: number[], groups: GroupOverTime[]}} CollectivesOverTime */

/**
 * @typedef {object} Hours
 * @property {string} folder
 * @property {string} source the log that they are from, as a sentence; "" where a Doctor recorded them
 * @property {string[]} problems
 * @property {string[]} collectives what the Inspector of NCCL or RCCL wrote, as sentences
 * @property {CollectivesOverTime | null} collectives_over_time
 * @property {string} headline
 * @property {number} ranks 0 where a log does not say
 * @property {number} nodes
 * @property {number} steps
 * @property {boolean} names_ranks
 * @property {number} median_step_ms
 * @property {number} p99_step_ms
 * @property {number} goodput
 * @property {string} goodput_trend how it went from the first to the last eighth; "" where it stayed
 * @property {number | null} slowdown
 * @property {number | null} slowest_workers
 * @property {number | null} last_stage
 * @property {Record<string, number>} time_s
 * @property {JobEvent[]} events
 * @property {Capture[]} captures
 * @property {number} bin_steps
 * @property {number} first_step
 * @property {number[]} edges_s
 * @property {{low: (number | null)[], median: (number | null)[], p99: (number | null)[], high: (number | null)[]}} step_ms
 * @property {Record<string, number[]>} lost_s
 * @property {HeatLevels | null} heat
 */

/** Bins from the first to before the last. @typedef {{from: number, to: number}} Range */

/** Of nothing known. */
const UNKNOWN = 255;

/**
 * The rows of a heat map, share above the median rank; NaN where nothing is known.
 * @param {HeatLevels} heat
 * @param {"median" | "longest"} quantity
 * @returns {Float32Array[]}
 */
export function sharesOf(heat, quantity) {
  const bytes = Uint8Array.from(atob(heat[quantity]), (letter) => letter.charCodeAt(0));
  const columns = bytes.length / Math.max(heat.ranks.length, 1);
  const shares = Float32Array.from(bytes, (level) => (level === UNKNOWN ? NaN : level * heat.level));
  return heat.ranks.map((_, row) => shares.subarray(row * columns, (row + 1) * columns));
}

/**
 * The bin that has an instant, or the nearest one.
 * @param {number[]} edges_s
 * @param {number} at_s
 */
export function binAt(edges_s, at_s) {
  let [low, high] = [0, edges_s.length - 2];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (edges_s[middle] <= at_s) low = middle;
    else high = middle - 1;
  }
  return low;
}

/**
 * The bin of a step, or the nearest one.
 * @param {Hours} hours
 * @param {number} step
 */
export const binOf = ({ first_step, bin_steps, edges_s }, step) =>
  Math.max(0, Math.min(edges_s.length - 2, Math.floor((step - first_step) / bin_steps)));

/**
 * Where the time of some bins went, s; what is left of it trained.
 * @param {Hours} hours
 * @param {Range} range
 */
export function accountOf({ edges_s, lost_s }, { from, to }) {
  const whole = edges_s[to] - edges_s[from];
  const lost = Object.entries(lost_s).map(([name, seconds]) => /** @type {[string, number]} */ ([name, sum(seconds.slice(from, to))]));
  return { whole, parts: /** @type {[string, number][]} */ ([["training", Math.max(0, whole - sum(lost.map(([, seconds]) => seconds)))], ...lost]) };
}

/**
 * The rows that are slowest in some bins, by the mean share above the median rank; those above `least` alone.
 * @param {Float32Array[]} rows
 * @param {Range} range
 * @param {number} most rows
 * @param {number} least
 * @returns {[number, number][]} row and share
 */
export function slowestRows(rows, { from, to }, most, least) {
  return rows
    .map((row, i) => /** @type {[number, number]} */ ([i, mean(row.subarray(from, to))]))
    .filter(([, share]) => share >= least)
    .sort(([, a], [, b]) => b - a)
    .slice(0, most);
}

const sum = (/** @type {number[]} */ values) => values.reduce((all, value) => all + value, 0);

/** @param {Float32Array} values */
function mean(values) {
  let [all, known] = [0, 0];
  for (const value of values)
    if (value === value) {
      all += value;
      known++;
    }
  return known ? all / known : 0;
}

/**
 * Stretches of columns, first and after the last, in which edges are equally far apart, to half a pixel: each can be
 * drawn in one piece.
 * @param {number[]} edges pixels
 * @param {number} first
 * @param {number} end the edge after the last column
 * @returns {[number, number][]}
 */
export function evenStretches(edges, first, end) {
  const slope = (edges[end] - edges[first]) / Math.max(end - first, 1);
  let [worst, at] = [0, first];
  for (let i = first + 1; i < end; i++) {
    const away = Math.abs(edges[i] - edges[first] - slope * (i - first));
    if (away > worst) [worst, at] = [away, i];
  }
  return worst < 0.5 ? [[first, end]] : [...evenStretches(edges, first, at), ...evenStretches(edges, at, end)];
}
