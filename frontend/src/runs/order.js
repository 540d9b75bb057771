// Which runs the list shows, in which order: filtered, sorted, and grouped by folder. Pure.

import { lossOf, newerFirst } from "../model.js";

/** @typedef {import("../model.js").RunEntry} RunEntry */
/** @typedef {"cost" | "newest" | "step" | "name"} Order */
/** @typedef {{group: string, runs: number, isClosed: boolean} | {run: RunEntry, name: string}} Row a folder, or a run and its name in there */

/** @type {[Order, string][]} */
export const ORDERS = [
  ["cost", "by cost"],
  ["newest", "newest first"],
  ["step", "by step time"],
  ["name", "by name"],
];

/**
 * @param {RunEntry[]} runs
 * @param {Order} order
 * @param {string} filter what the name or the verdict contains
 * @param {Set<string>} closed folders that are
 * @returns {Row[]}
 */
export function arranged(runs, order, filter, closed) {
  const wanted = filter.trim().toLowerCase();
  const shown = runs.filter(({ name, verdict }) => `${name} ${verdict ?? ""}`.toLowerCase().includes(wanted));
  /** @type {Map<string, RunEntry[]>} */
  const folders = new Map();
  for (const run of [...shown].sort(BY[order])) {
    const folder = folderOf(run.name);
    const members = folders.get(folder);
    if (members) members.push(run);
    else folders.set(folder, [run]);
  }
  return [...folders].flatMap(([group, members]) => {
    const isClosed = closed.has(group) && !wanted;
    const rows = members.map((run) => ({ run, name: group ? run.name.slice(group.length + 1) : run.name }));
    return group ? [{ group, runs: members.length, isClosed }, ...(isClosed ? [] : rows)] : rows;
  });
}

/** @param {string} name */
const folderOf = (name) => name.slice(0, Math.max(0, name.lastIndexOf("/")));

const collator = new Intl.Collator("en", { numeric: true });
/** @param {RunEntry} a @param {RunEntry} b */
const byName = (a, b) => collator.compare(a.name, b.name);

/** @type {Record<Order, (a: RunEntry, b: RunEntry) => number>} */
const BY = {
  name: byName,
  newest: (a, b) => newerFirst(a, b) || byName(a, b),
  step: (a, b) => (b.step_ms ?? -1) - (a.step_ms ?? -1) || byName(a, b),
  cost: (a, b) => rank(a) - rank(b) || lostShare(b) - lostShare(a) || byName(a, b),
};

/**
 * Runs in the order in which to look at them.
 * @param {RunEntry[]} runs
 */
export const worstFirst = (runs) => [...runs].sort(BY.cost);

/**
 * Stuck jobs and those without memory first, then runs with a loss, healthy ones, those of which it is unknown, and those that are not read.
 * @param {RunEntry} run
 */
function rank(run) {
  if (run.state !== "ready") return 3;
  if (run.verdict === "stuck" || run.verdict === "out-of-memory") return -1;
  if (run.verdict === "unknown") return 2;
  return lostShare(run) > 0 ? 0 : 1;
}

/** @param {RunEntry} run */
const lostShare = (run) => (run.step_ms ? lossOf(run) / run.step_ms : 0);
