// What lies in a range of the timeline: time per owner, per kernel and per rank. Pure. Times are ms.

import { IDLE } from "../step_parts.js";
import { firstAbove } from "./cull.js";
import { shortName } from "./rows.js";

/** @typedef {import("./rows.js").Row} Row */
/** @typedef {import("./scale.js").Span} Span */
/** @typedef {{rank: number, of: Record<string, number>, idle: number, gaps: number}} Owned a rank's time by owner; gaps in which its GPU idles */

/** @typedef {{name: string, calls: number, total: number, longest: number, rank: number}} Kernel `rank` has the longest call */

/** Kernels that are named. */
const NAMED = 12;

/**
 * A rank's time by owner, from the lanes that a screen shows: what is shorter is left out.
 * @param {import("./rows.js").RankLanes} lanes
 * @param {number} shift us, of their window after the origin
 * @param {Span} span
 * @returns {Owned[]}
 */
export function byOwner({ ranks, owners }, shift, span) {
  return ranks.map(({ rank, owner, start_us, length_us }) => {
    /** @type {Owned} */
    const found = { rank, of: {}, idle: 0, gaps: 0 };
    owner.forEach((one, i) => {
      const start = start_us[i] + shift;
      const long = (Math.min(span.to, start + length_us[i]) - Math.max(span.from, start)) / 1e3;
      if (long <= 0) return;
      const name = owners[one];
      found.of[name] = (found.of[name] ?? 0) + long;
      if (!IDLE.has(name)) return;
      found.idle += long;
      found.gaps += 1;
    });
    return found;
  });
}

/**
 * The kernels that take longest in a range, of all ranks that are opened.
 * @param {Row[]} rows
 * @param {Span} span
 * @returns {{shown: Kernel[], all: number}}
 */
export function byKernel(rows, span) {
  /** @type {Map<string, Kernel>} */
  const found = new Map();
  for (const row of rows) {
    if (row.paint !== "device" || !row.title) continue;
    for (let i = firstAbove(row.ends, span.from); i < row.starts.length && row.starts[i] < span.to; i++) {
      const name = shortName(row.names[row.name[i]]);
      const long = (Math.min(span.to, row.ends[i]) - Math.max(span.from, row.starts[i])) / 1e3;
      const one = found.get(name) ?? { name, calls: 0, total: 0, longest: 0, rank: row.rank };
      one.calls += 1;
      one.total += long;
      if (long > one.longest) [one.longest, one.rank] = [long, row.rank];
      found.set(name, one);
    }
  }
  const sorted = [...found.values()].sort((a, b) => b.total - a.total);
  return { shown: sorted.slice(0, NAMED), all: sorted.length };
}

/**
 * The median of each owner over ranks.
 * @param {Owned[]} some
 * @param {string[]} owners
 */
export function medianOf(some, owners) {
  return Object.fromEntries(
    owners.map((owner) => {
      const values = some.map(({ of }) => of[owner] ?? 0).sort((a, b) => a - b);
      return [owner, values.length ? (values[Math.floor((values.length - 1) / 2)] + values[Math.floor(values.length / 2)]) / 2 : 0];
    }),
  );
}
