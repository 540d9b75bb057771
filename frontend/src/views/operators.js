// What kernels take and could take at least, and what operators, calls and kernels take, by name, over all ranks.

import { cards } from "../compute/cards.js";
import { apart } from "../compute/names.js";
import { detail } from "../detail.js";
import { card, h } from "../dom.js";
import { count, perStep, percent } from "../format.js";
import { grid, plain } from "../grid.js";
import { plainName } from "../timeline/rows.js";

/** @typedef {import("../views.js").Shown} Shown */
/**
 * @typedef {object} Operations columns; times are of a rank's step, mean over ranks and steps
 * @property {number} ranks
 * @property {string[]} names "" for the sum of what has no name here
 * @property {boolean[]} on_device
 * @property {boolean[]} is_annotation
 * @property {number[]} named_by ranks
 * @property {number[]} calls
 * @property {number[]} host_ms
 * @property {number[]} device_ms
 * @property {number[]} mean_us
 * @property {(number | null)[]} occupancy
 * @property {number[]} tensor
 * @property {number[]} most_ms
 * @property {number[]} most_rank
 * @property {number} recorded_steps of the rank with most: the tables are means over all of them
 * @property {number} compared_steps how many of them other views compare
 * @property {(number | null)[]} wait_ms straggler wait in a kernel's time; null of those that do not communicate
 */

/** @type {import("../views.js").View} */
export const operators = {
  title: "Kernels",
  fragment: "operators",
  render(element, shown) {
    const { name } = shown.diagnosis;
    const parts = [h("div", { class: "cards" }), h("div", { class: "cards" })];
    element.append(...parts);
    const leave = [detail(parts[0], name, "compute", (told) => cards(told, shown)), detail(parts[1], name, "operators", (told) => tables(told, shown))];
    return () => leave.forEach((left) => left());
  },
  table: () => null, // it is tables
};

/**
 * @param {Operations} told
 * @param {Shown} shown
 */
function tables(told, shown) {
  const rows = told.names.map((_, i) => i);
  const device = rows.filter((i) => told.on_device[i]);
  const host = rows.filter((i) => !told.on_device[i] && !told.is_annotation[i]);
  const annotations = rows.filter((i) => told.is_annotation[i]);
  const about = `ms per step, mean over ${count(told.ranks, "rank")}${ofSteps(told)}. Concurrent streams or threads add up to more than the step.`;
  return [
    device.length
      ? card("Kernels, copies and memsets", h("p", { class: "note" }, `${about} Straggler wait in a collective is a separate row.`), kernels(told, device, shown))
      : null,
    card("Operators and CUDA calls", h("p", { class: "note" }, device.length ? "ms per step. Self CPU: time in the operator without the operators it calls. Self CUDA: time of the kernels it launched itself." : about), table(told, host, shown, "operator")),
    annotations.length
      ? card("Annotations", h("p", { class: "note" }, "ms per step. Self CPU: time in the annotation outside of operators and calls. They are no operators: what they are around counts for itself."), table(told, annotations, shown, "annotation"))
      : null,
  ];
}

/**
 * Of which steps the tables are the mean, where other views compare fewer.
 * @param {Operations} told
 */
function ofSteps({ recorded_steps: recorded, compared_steps: compared }) {
  return recorded > compared ? ` and all ${count(recorded, "recorded step")}; other views compare ${compared}, for the reasons in Data quality` : "";
}

/**
 * From a name to its events in the timeline, the longest chosen: its op and its stack stand beside it there.
 * @param {Shown} shown
 */
const instances = ({ views, link }) => (/** @type {string} */ name, /** @type {string} */ text) => {
  if (!views || views.from_digests || name === named("")) return null;
  const anchor = link("timeline", { find: name.replace(WAIT, "").slice(0, LETTERS) });
  anchor.textContent = text;
  return anchor;
};

/** Of a name that is sought: names of kernels may be hundreds of letters. */
const LETTERS = 120;

/** What stands before the name of a kernel in the row of its straggler wait. */
const WAIT = "straggler wait in ";

const named = (/** @type {string} */ name) => name || "(all others)";

/**
 * @param {Operations} told
 * @param {number[]} rows
 * @param {Shown} shown
 */
function kernels(told, rows, shown) {
  const total = rows.reduce((sum, i) => sum + told.device_ms[i], 0);
  const written = apart(rows.map((i) => plainName(named(told.names[i]))));
  const short = (/** @type {string} */ name) => {
    const plain = plainName(name.replace(WAIT, ""));
    return (name.startsWith(WAIT) ? WAIT : "") + (written.get(plain) ?? plain);
  };
  return grid({
    title: "kernels",
    shown,
    search: "Filter",
    sort: 1,
    columns: [
      { head: "kernel", show: short, link: instances(shown) },
      { head: "GPU time", unit: "ms", show: plain, bar: true },
      { head: "share", quantity: "share of GPU time", show: percent, title: "of the GPU time of all rows" },
      { head: "calls", show: perStep, title: "per step and rank" },
      { head: "mean, µs", show: plain },
      { head: "occupancy", show: percent, title: "estimated achieved occupancy from the profiler, weighted by time" },
      { head: "tensor cores", show: percent, title: "share of its time in kernels that use tensor cores, judged by kernel name" },
      { head: "max", unit: "ms", show: plain, title: "the largest of all ranks" },
      { head: "(rank)", title: "the rank with the max" },
    ],
    rows: rows.flatMap((i) => {
      const calls = told.calls[i];
      const row = (/** @type {string} */ name, /** @type {number} */ ms, /** @type {(number | null)[]} */ ...more) => [name, ms, total > 0 ? ms / total : 0, calls, ...more];
      const [name, ms, wait] = [named(told.names[i]), told.device_ms[i], told.wait_ms[i]];
      if (!wait) return [row(name, ms, told.mean_us[i], told.occupancy[i], told.tensor[i], told.most_ms[i], told.most_rank[i])];
      // Which rank has the most is known of both together alone: the rank that waits longest.
      const part = (/** @type {string} */ title, /** @type {number} */ some) => row(title, some, calls > 0 ? (1e3 * some) / calls : null, null, null, null, null);
      return [part(name, ms - wait), part(WAIT + name, wait)];
    }),
  });
}

/**
 * @param {Operations} told
 * @param {number[]} rows
 * @param {Shown} shown
 * @param {"operator" | "annotation"} what
 */
function table(told, rows, shown, what) {
  return grid({
    title: `${what}s`,
    shown,
    search: "Filter",
    sort: 1,
    columns: [
      { head: what, link: instances(shown) },
      { head: "Self CPU", unit: "ms", show: plain, bar: true },
      { head: "Self CUDA", unit: "ms", show: plain, bar: true },
      { head: "calls", show: perStep, title: "per step and rank" },
      { head: "mean Self CPU, µs", show: plain },
      { head: "max", unit: "ms", show: plain, title: "the largest Self CPU of all ranks" },
      { head: "(rank)", title: "the rank with the max" },
    ],
    rows: rows.map((i) => [
      named(told.names[i]),
      told.host_ms[i],
      told.device_ms[i],
      told.calls[i],
      told.mean_us[i],
      told.most_ms[i],
      told.most_rank[i],
    ]),
  });
}
