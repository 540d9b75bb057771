// The table that the field knows: compute, communication and their overlap on each rank. Straggler wait is not
// communication here: with it, the ranks that wait for a straggler look as if they overlapped nothing.

import { detail } from "../detail.js";
import { card, h } from "../dom.js";
import { percent } from "../format.js";
import { grid, plain } from "../grid.js";
import { affectedRanks } from "../model.js";

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
  const affected = affectedRanks(shown.diagnosis);
  const rows = told.ranks.map((rank, i) => [
    affected.has(rank) ? `rank ${rank} ◀` : `rank ${rank}`,
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
      affected.size
        ? "ms per step, mean over steps. ◀ marks affected ranks. A straggler has a long busy time and a short straggler wait; the ranks that wait for it have the reverse."
        : "ms per step, mean over steps. No finding is limited to some ranks.",
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
        { head: "busy time", unit: "ms", show: plain, bar: true, title: "step minus straggler wait" },
        { head: "straggler wait", unit: "ms", show: plain, bar: true, title: "only communication runs, and some rank has not arrived" },
        { head: "compute", unit: "ms", show: plain, bar: true },
        { head: "comm.", unit: "ms", show: plain, title: "communication from this rank's arrival on, straggler wait included, overlapped or not (as HTA and nsys count it)" },
        { head: "comm. without wait", unit: "ms", show: plain, title: "communication once all ranks have arrived, overlapped or exposed" },
        { head: "overlap", show: percent, title: "share of communication without wait that runs beside compute or a copy" },
        { head: "exposed", unit: "ms", show: plain, bar: true, title: "exposed communication: only communication runs, and all ranks have arrived" },
        { head: "copy", unit: "ms", show: plain },
        { head: "GPU idle", unit: "ms", show: plain, title: "nothing runs on the GPU" },
      ],
      rows,
    }),
  );
}
