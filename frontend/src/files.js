// What was read of each rank, and how well: a part of the view on data quality.

import { detail } from "./detail.js";
import { card, h } from "./dom.js";
import { ms, ranges } from "./format.js";
import { grid } from "./grid.js";

/** @typedef {{rank: number, node: string, file: string, steps: number[], device: string, launches: boolean, shapes: boolean, stacks: boolean, memory: boolean, collectives: number, matched: number, drift_us: number}} File */

const RECORDED = /** @type {const} */ (["launches", "shapes", "stacks", "memory"]);
const recorded = (/** @type {File} */ file) => RECORDED.filter((what) => file[what]).join(", ") || "kernels and operators only";

/**
 * @param {HTMLElement} element
 * @param {import("./views.js").Shown} shown
 */
export function files(element, shown) {
  const { name, clock, missing_ranks } = shown.diagnosis;
  return detail(element, name, "quality", (/** @type {{files: File[]}} */ told) => [
    card(
      "Files and clocks",
      h(
        "p",
        { class: "note" },
        clock.residual_us === null
          ? "Clock skew unknown: no collective was matched between ranks."
          : `${shown.diagnosis.setting.hosts === 1 ? "One host, one clock. Ends of collectives" : "Clock skew"} ±${ms(clock.residual_us / 1000)} after alignment: the median spread of the ends of matched collectives. Differences between ranks below that are not significant.`,
        missing_ranks.length ? ` No trace of ${missing_ranks.length === 1 ? "rank" : "ranks"} ${ranges(missing_ranks)}.` : "",
      ),
      grid({
        title: "files",
        shown,
        search: "Filter",
        sort: 0,
        descending: false,
        columns: [
          { head: "rank" },
          { head: "node" },
          { head: "file", show: (path) => path.split("/").pop() },
          { head: "steps", title: "steps recorded from start to end" },
          { head: "device" },
          { head: "clock offset", show: (us) => ms(us / 1000), title: "subtracted from this rank's clock to align it" },
          { head: "drift", show: (us) => ms(us / 1000), title: "change of the clock offset from the first to the last step" },
          { head: "collectives", title: "collectives in this trace" },
          { head: "matched", title: "collectives matched with those of other ranks" },
          { head: "recorded", title: "launches: kernels linked to the CPU call that launched them; shapes: record_shapes; stacks: with_stack; memory: profile_memory" },
        ],
        rows: told.files.map((file) => [
          `rank ${file.rank}`,
          file.node,
          file.file,
          ranges(file.steps),
          file.device || "CPU",
          clock.offset_us[file.rank] ?? null,
          file.drift_us,
          file.collectives,
          file.matched,
          recorded(file),
        ]),
      }),
    ),
  ]);
}
