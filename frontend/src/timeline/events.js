// What is said of events: a sentence for one, a table for the longest ones of a window. Pure.

import { count, decimals, ms } from "../format.js";
import { ownerName } from "../model.js";
import { firstAbove } from "./cull.js";
import { shortName, waitsUntil } from "./rows.js";

/** @typedef {import("./rows.js").Laid} Laid */
/** @typedef {import("./scale.js").Span} Span */

/** Events of a table. */
export const LISTED = 200;
export const HEADS = ["rank", "lane", "event", "start, ms", "duration, ms", "straggler wait, ms", "owner"];

/**
 * What one event is, when, and how long.
 * @param {Laid} laid
 * @param {number} row
 * @param {number} index
 * @param {number} zero us
 */
export function sentence({ rows, joined }, row, index, zero) {
  const { rank, lane, paint, starts, ends, names, name, owners, owner } = rows[row];
  const until = waitsUntil(rows[row], index, joined);
  const one = joined.get(String(rows[row].collective[index]));
  const parts = [
    `rank ${rank}, ${lane}: ${shortName(names[name[index]])}`,
    `${ms((ends[index] - starts[index]) / 1000)} from ${ms((starts[index] - zero) / 1000)}`,
    until > starts[index] ? `of that ${ms((until - starts[index]) / 1000)} straggler wait for rank ${one?.last_rank}` : "",
    one ? `${one.kind} of ${decimals(one.bytes / 1e6, 1)} MB` : said(paint, owners[owner[index]]),
  ];
  return parts.filter(Boolean).join(", ");
}

/**
 * What a row has of a module, when, and how long.
 * @param {Laid} laid
 * @param {import("./search.js").Hit} hit
 * @param {number} zero us
 */
export function ofModule({ rows }, { row, first, last, module }, zero) {
  const { rank, lane, starts, ends } = rows[row];
  return `rank ${rank}, ${lane}: ${module}, ${count(last - first + 1, "event")}, ${ms((ends[last] - starts[first]) / 1000)} from ${ms((starts[first] - zero) / 1000)}`;
}

/**
 * The owner of an event, where that says more than its name: what the CPU does blocks the GPU, or it does not.
 * @param {import("./rows.js").Row["paint"]} paint
 * @param {string} owner
 */
export const said = (paint, owner) => (paint === "budget" || (paint === "host" && ["host", "dispatch", "compute"].includes(owner)) ? "" : ownerOf(owner));

/** @param {string} owner of a slice, which does not split communication */
export const ownerOf = (owner) => (owner === "communication" ? "communication" : owner === "profiler" ? "the profiler's work" : ownerName(owner));

/**
 * The longest events of a window, in order of time.
 * @param {import("./rows.js").Row[]} rows
 * @param {Laid["joined"]} joined
 * @param {Span} span
 * @param {number} zero us
 */
export function inView(rows, joined, span, zero) {
  const all = rows.filter(({ folded }) => !folded).flatMap((row) => {
    const found = [];
    for (let i = firstAbove(row.ends, span.from); i < row.starts.length && row.starts[i] < span.to; i++)
      found.push({ row, i, takes: row.ends[i] - row.starts[i] });
    return found;
  });
  const longest = all.sort((a, b) => b.takes - a.takes).slice(0, LISTED);
  longest.sort((a, b) => a.row.starts[a.i] - b.row.starts[b.i]);
  return longest.map(({ row, i, takes }) => [
    `rank ${row.rank}`,
    row.lane,
    shortName(row.names[row.name[i]]),
    (row.starts[i] - zero) / 1000,
    takes / 1000,
    (waitsUntil(row, i, joined) - row.starts[i]) / 1000,
    ownerOf(row.owners[row.owner[i]]),
  ]);
}
