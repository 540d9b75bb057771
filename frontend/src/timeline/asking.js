// What a timeline asks the server for: the events of the opened ranks, and lanes of these and of the folded ones. A window
// that is no longer shown, and a timeline that is left, stop their requests.

import { fetchLanes, fetchSlice } from "../api.js";

/** @typedef {import("./rows.js").RankLanes} RankLanes */
/** @typedef {import("./rows.js").Slice} Slice */
/** @typedef {import("./scale.js").Span} Span */

export class Asking {
  #window = new AbortController();
  #gone = new AbortController();

  /**
   * @param {string} run
   * @param {string} origin ns, as text
   * @param {boolean} hasEvents whether traces are here
   */
  constructor(run, origin, hasEvents) {
    this.run = run;
    this.origin = origin;
    this.hasEvents = hasEvents;
  }

  /** Whether nobody waits for answers any more. */
  get left() {
    return this.#gone.signal.aborted;
  }

  /** Both ends of a span, as text. @param {Span} span */
  ends({ from, to }) {
    return { start: this.#ns(from), end: this.#ns(to) };
  }

  /** @param {number} us after the origin */
  #ns(us) {
    return String(BigInt(this.origin) + BigInt(Math.round(us * 1000)));
  }

  /**
   * The whole record of some ranks, in their order; null where it cannot be had.
   * @param {number[]} ranks
   * @param {Span} whole
   */
  async record(ranks, whole) {
    try {
      const lanes = await fetchLanes(this.run, ranks, this.#ns(whole.from), this.#ns(whole.to), this.#gone.signal);
      return !this.left && lanes.ranks ? inOrder(lanes, ranks) : null;
    } catch {
      return null;
    }
  }

  /** Nobody waits for the window that was asked for last. */
  stop() {
    this.#window.abort();
  }

  get stopped() {
    return this.#window.signal.aborted;
  }

  /**
   * A window of opened and folded ranks; null where another was asked for since, or the timeline was left.
   * @param {number[]} opened
   * @param {number[]} folded
   * @param {Span} span
   * @returns {Promise<{slice: Slice, lanes: RankLanes | null} | null>}
   */
  async window(opened, folded, span) {
    this.#window.abort();
    this.#window = new AbortController();
    const { signal } = this.#window;
    const { start, end } = this.ends(span);
    /** @type {Slice} */
    const nothing = { start_ns: start, end_ns: end, owners: [], collectives: {}, labels: [], left_out: "", ranks: [] };
    try {
      const [slice, lanes] = await Promise.all([
        opened.length && this.hasEvents ? fetchSlice(this.run, [...opened].sort((a, b) => a - b), start, end, signal) : nothing,
        fetchLanes(this.run, [...opened, ...folded], start, end, signal).catch(() => null),
      ]);
      if (signal.aborted) return null;
      return { slice, lanes: lanes?.ranks ? inOrder(lanes, [...opened, ...folded]) : null };
    } catch (error) {
      if (signal.aborted) return null;
      throw error;
    }
  }

  leave() {
    this.#window.abort();
    this.#gone.abort();
  }
}

/**
 * Lanes in an order of their ranks.
 * @param {RankLanes} lanes
 * @param {number[]} ranks
 * @returns {RankLanes}
 */
function inOrder(lanes, ranks) {
  return { ...lanes, ranks: [...lanes.ranks].sort((a, b) => ranks.indexOf(a.rank) - ranks.indexOf(b.rank)) };
}
