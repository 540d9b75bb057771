// The table that the field knows: compute, communication and their overlap on each rank. Waiting is taken out of
// communication first: a straggler makes its victims look unoverlapped.

import { detail } from "../detail.js";
import { card, h } from "../dom.js";
import { percent } from "../format.js";
import { grid, plain } from "../grid.js";
import { guilty } from "../model.js";

/** @typedef {Record<string, number[]> & {nodes: string[]}} Told columns, one row per rank */

/** @type {import("../views.js").View} */
export const ranks = {
  title: "Ranks",
  fragment: "ranks",
  render: (element, shown) => detail(element, shown.diagnosis.name, "ranks", (told) => [compared(told, shown)]),
  table: () => null, // it is a table
};

/**
 * @param {Told} told
 * @param {import("../views.js").Shown} shown
 */
function compared(told, shown) {
  const accused = guilty(shown.diagnosis);
  const rows = told.ranks.map((rank, i) => [
    accused.has(rank) ? `rank ${rank} ◀` : `rank ${rank}`,
    told.nodes[i],
    told.step_ms[i],
    told.busy_ms[i],
    told.wait_ms[i],
    told.compute_ms[i],
    told.communication_ms[i],
    told.moving_ms[i],
    told.moving_ms[i] > 0 ? told.hidden_ms[i] / told.moving_ms[i] : null,
    told.transfer_ms[i],
    told.copy_ms[i],
    told.idle_ms[i],
  ]);
  return card(
    "Compute and communication of each rank",
    h(
      "p",
      { class: "note" },
      accused.size
        ? "In ms, mean over the steps. The accused are marked: what they wait is little, what the others wait is theirs."
        : "In ms, mean over the steps. No rank is accused.",
    ),
    grid({
      title: "ranks",
      shown,
      search: "Filter",
      sort: 3,
      marked: ([name]) => String(name).endsWith("◀"),
      columns: [
        { head: "rank" },
        { head: "node" },
        { head: "step", unit: "ms", show: plain },
        { head: "own", unit: "ms", show: plain, bar: true, title: "the step without waiting for others" },
        { head: "waits", unit: "ms", show: plain, bar: true, title: "exposed waiting for the last rank to arrive" },
        { head: "compute", unit: "ms", show: plain, bar: true },
        { head: "communication", unit: "ms", show: plain, title: "from its own arrival on, hidden or not, as other tools count it" },
        { head: "moves", unit: "ms", show: plain, title: "communication once all ranks have arrived" },
        { head: "overlap", show: percent, title: "share of the time in which data moves that has compute or a copy beside it" },
        { head: "exposed", unit: "ms", show: plain, bar: true, title: "data moves and nothing else runs" },
        { head: "copies", unit: "ms", show: plain },
        { head: "idle", unit: "ms", show: plain, title: "the device has nothing to do" },
      ],
      rows,
    }),
  );
}
