// The panel beside a timeline while a range is selected: its time per owner and rank, its kernels, and the ways from it.

import { h } from "../dom.js";
import { decimals, ms, ranges } from "../format.js";
import { idleName, ownerName } from "../model.js";
import { IDLE } from "../step_parts.js";

/** A part of a bar below this share of the range has no room for its number. */
const LABELLED = 0.16;

/**
 * @typedef {object} Range
 * @property {import("./range.js").Owned[]} owned
 * @property {{shown: import("./range.js").Kernel[], all: number}} kernels
 * @property {number} length ms
 * @property {string[]} owners
 * @property {number[]} pinned ranks that have a bar each
 * @property {Record<string, number>} median of the others, ms
 * @property {number} hidden events that are too short to be here
 * @property {boolean} gpu whether a GPU computes
 */

/**
 * @param {Range} of
 * @param {{zoom: () => void, open: (() => void) | null, close: () => void}} ways `open`: the range in Perfetto
 */
export function statistics({ owned, kernels, length, owners, pinned, median, hidden, gpu }, ways) {
  const used = owners.filter((owner) => owned.some(({ of }) => (of[owner] ?? 0) > length / 1000));
  const rows = owned.filter(({ rank }) => pinned.includes(rank)).sort((a, b) => pinned.indexOf(a.rank) - pinned.indexOf(b.rank));
  const others = owned.length - rows.length;
  const idleOf = (/** @type {Record<string, number>} */ of) => Object.entries(of).reduce((sum, [owner, value]) => (IDLE.has(owner) ? sum + value : sum), 0);
  const columns = [
    ...rows.map(({ rank, of, idle, gaps }) => ({ name: `rank ${rank}`, of, idle, gaps: String(gaps) })),
    ...(others ? [{ name: `median of ${others}`, of: median, idle: idleOf(median), gaps: "–" }] : []),
  ];
  const notes = [
    "Owners are of the stretches that a digest has, so they sum to a little less than the range.",
    `Kernels are of ${rows.length === 1 ? "rank" : "ranks"} ${ranges([...pinned].sort((a, b) => a - b))}${kernels.all > kernels.shown.length ? `, the ${kernels.shown.length} longest of ${kernels.all}` : ""}.`,
    hidden ? `${hidden.toLocaleString("en")} short events of the window are not counted; zoom in to count them.` : "",
  ];
  return [
    h("header", {}, h("h3", {}, `Selected range, ${ms(length)}`), h("button", { type: "button", class: "close", "aria-label": "Clear the range", click: ways.close }, "×")),
    h("p", { class: "ways" }, h("button", { type: "button", click: ways.zoom }, "Zoom to it"), ways.open && h("button", { type: "button", click: ways.open }, "Open in Perfetto")),
    h("div", { class: "range-bars textured" }, columns.map(({ name, of }) => h("div", { class: "row" }, h("span", { class: "rank" }, name), bar(of, used, length)))),
    scrolled(
      "Time per owner and rank in the selected range",
      ["ms", ...columns.map(({ name }) => name)],
      [
        ...used.map((owner) => [ownerName(owner), ...columns.map(({ of }) => decimals(of[owner] ?? 0, 2))]),
        [gpu ? `all ${idleName(gpu)}` : idleName(gpu), ...columns.map(({ idle }) => decimals(idle, 2))],
        ["gaps", ...columns.map(({ gaps }) => gaps)],
      ],
    ),
    kernels.all
      ? scrolled(
          "Kernels in the selected range",
          ["kernel", "calls", "total, ms", "longest, ms", "on"],
          kernels.shown.map(({ name, calls, total, longest, rank }) => [name, calls.toLocaleString("en"), decimals(total, 2), decimals(longest, 3), `rank ${rank}`]),
        )
      : null,
    h("p", { class: "note" }, notes.filter(Boolean).join(" ")),
  ];
}

/**
 * @param {Record<string, number>} of ms by owner
 * @param {string[]} used owners
 * @param {number} length ms
 */
function bar(of, used, length) {
  const parts = used.filter((owner) => of[owner] > 0);
  return h(
    "div",
    { class: "bar" },
    parts.map((owner) => h("span", { class: `part owner-${owner}`, style: `flex: 0 1 ${(100 * of[owner]) / length}%`, title: `${ownerName(owner)} ${ms(of[owner])}` }, of[owner] > LABELLED * length && h("span", {}, decimals(of[owner], 1)))),
  );
}

/**
 * A table that scrolls within the panel.
 * @param {string} label
 * @param {string[]} heads
 * @param {string[][]} rows
 */
function scrolled(label, heads, rows) {
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    h(
      "table",
      { class: heads[0] === "kernel" ? "kernels" : null },
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, rows.map(([name, ...cells]) => h("tr", {}, h("th", { scope: "row", title: name }, name), cells.map((text) => h("td", {}, text))))),
    ),
  );
}
