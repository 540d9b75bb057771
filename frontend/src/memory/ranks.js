// Each rank at the peak of its allocated memory: what it reserves beside it and, where the traces tell, what it is made of.

import { percent } from "../format.js";
import { grid } from "../grid.js";
import { MEMORY } from "../step_parts.js";
import { size } from "./contents.js";

/** @typedef {import("../../schema.js").Memory} Memory */
/** @typedef {import("../views/memory.js").Curve} Curve */

/**
 * @param {Memory | null} memory
 * @param {Curve[]} curves of the ranks that reserve most
 * @param {import("../views.js").Shown} shown
 */
export function byRank(memory, curves, shown) {
  const told = memory?.ranks ?? [];
  const made = new Map(told.map((one) => [one.rank, one]));
  const drawn = new Map(curves.map((one) => [one.rank, one]));
  const seen = [...MEMORY].filter(([id]) => told.some(({ categories }) => categories[id] > 0));
  const more = new Set(told.filter(({ excess_category: of }) => of).map(({ rank }) => `rank ${rank}`));
  const nodes = new Map((shown.views?.ranks ?? []).map((rank, i) => [rank, shown.views?.nodes[i] ?? ""]));
  const ranks = [...new Set([...made.keys(), ...drawn.keys()])].sort((a, b) => a - b);
  return grid({
    title: "memory-ranks",
    shown,
    search: "Filter",
    sort: 2,
    marked: ([name]) => more.has(String(name)),
    columns: [
      { head: "rank" },
      { head: "node" },
      { head: "max allocated", show: size, bar: true },
      { head: "max reserved", show: size, bar: true },
      { head: "reserved, share of GPU", show: percent },
      { head: "reserved but unallocated", show: size, title: "at the peak of allocated" },
      ...seen.map(([, { name }]) => ({ head: name, quantity: `${name} (memory)`, show: size })),
      ...(more.size ? [{ head: "more than the median", show: size, title: "only where it is 5 % more or above" }] : []),
    ],
    rows: ranks.map((rank) => {
      const [one, curve] = [made.get(rank), drawn.get(rank)];
      const used = one?.allocated ?? Math.max(...(curve?.allocated ?? []));
      const reserved = curve ? Math.max(...curve.reserved) : null;
      const beside = one?.reserved ?? curve?.reserved[curve.allocated.indexOf(used)] ?? null;
      return [
        `rank ${rank}`,
        nodes.get(rank) ?? "",
        used,
        reserved,
        curve && reserved !== null && curve.device_bytes > 0 ? reserved / curve.device_bytes : null,
        beside === null ? null : beside - used,
        ...seen.map(([id]) => one?.categories[id] ?? null),
        ...(more.size ? [one?.excess || null] : []),
      ];
    }),
  });
}
