// What is known of one event: which call launched it, what that is called by, what it waits for. Pure.

import { waitsUntil } from "./rows.js";

/** @typedef {import("./rows.js").Laid} Laid */
/** @typedef {import("./rows.js").Lane} Lane */
/** @typedef {{name: string, start: number, end: number, lane: string}} Call a host call; us after the origin */

/**
 * @typedef {object} About
 * @property {Call | null} launch the call that launched it, for what runs on a device
 * @property {Call[]} stack what is around it on the host, or around its launch, the outermost first
 * @property {{name: string, rank: number, start: number, end: number} | null} launched what it launched, for a call
 * @property {Call | null} before for a gap, the last op that ended before it
 * @property {Call | null} after for a gap, the first op that began after its start
 */

/**
 * @param {Laid} laid
 * @param {number} row
 * @param {number} index
 * @returns {About}
 */
export function about({ rows, slice, shift }, row, index) {
  const { rank, lane, paint, starts, ends, launch } = rows[row];
  const part = slice.ranks.find((one) => one.rank === rank);
  /** @type {About} */
  const found = { launch: null, stack: [], launched: null, before: null, after: null };
  if (!part) return found;
  const hosts = part.lanes.filter(({ role }) => role !== "stream");
  const call = (/** @type {Lane} */ on, /** @type {number} */ i) => ({ name: part.names[on.name[i]], start: on.start_us[i] + shift, end: on.start_us[i] + on.length_us[i] + shift, lane: on.title });
  const around = (/** @type {Lane} */ on, /** @type {number} */ at, /** @type {number} */ until) =>
    on.start_us.flatMap((start, i) => (start + shift <= at && start + on.length_us[i] + shift >= until && !(start + shift === at && start + on.length_us[i] + shift === until) ? [call(on, i)] : []));
  if (paint === "budget") {
    for (const on of hosts) {
      on.start_us.forEach((_, i) => {
        if (on.depth[i] > 1) return;
        const one = call(on, i);
        if (one.end <= starts[index] && (!found.before || one.end > found.before.end)) found.before = one;
        if (one.start >= starts[index] && (!found.after || one.start < found.after.start)) found.after = one;
      });
    }
    const main = hosts.find(({ role }) => role === "main");
    const middle = (starts[index] + ends[index]) / 2;
    found.stack = main ? around(main, middle, middle) : [];
  } else if (paint === "device") {
    for (const on of hosts) {
      const at = launch[index] < 0 ? -1 : (on.launch ?? []).indexOf(launch[index]);
      if (at < 0) continue;
      found.launch = call(on, at);
      found.stack = around(on, found.launch.start, found.launch.end);
    }
  } else {
    const on = hosts.find(({ title }) => title === lane);
    found.stack = on ? around(on, starts[index], ends[index]) : [];
    for (const [i, other] of rows.entries()) {
      const at = launch[index] < 0 || other.rank !== rank || other.paint !== "device" ? -1 : other.launch.indexOf(launch[index]);
      if (at >= 0) found.launched = { name: rows[i].names[rows[i].name[at]], rank, start: rows[i].starts[at], end: rows[i].ends[at] };
    }
  }
  return found;
}

/**
 * How an event splits: us it waits for a rank, and us from then on.
 * @param {Laid} laid
 * @param {number} row
 * @param {number} index
 */
export function waiting({ rows, joined }, row, index) {
  const until = waitsUntil(rows[row], index, joined);
  return { waits: until - rows[row].starts[index], transfers: rows[row].ends[index] - until, one: joined.get(String(rows[row].collective[index])) };
}

/**
 * algbw and busbw of a collective, GB/s; null where its size or its time is unknown.
 * @param {{bytes: number, transfer: number, bus_factor: number}} one
 */
export const bandwidth = ({ bytes, transfer, bus_factor }) => (bytes > 0 && transfer > 0 ? { algbw: bytes / transfer / 1e3, busbw: (bytes / transfer / 1e3) * bus_factor } : null);
