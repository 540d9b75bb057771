// Where in the model a step's time goes: its modules as boxes below each other, its layers side by side, and a table.

import { detail } from "../detail.js";
import { card, h } from "../dom.js";
import { count, decimals, ms, percent } from "../format.js";
import { grid, plain } from "../grid.js";
import { difference } from "../layers/difference.js";
import { explorer } from "../layers/explorer.js";
import { begun, layersOf, nameOf, PARTS, shortPath } from "../layers/model.js";

/** @typedef {import("../views.js").Shown} Shown */
/** @typedef {import("../../schema.js").LayerTable} LayerTable */
/** @typedef {import("../../schema.js").LayerRow} LayerRow */

/** @type {import("../views.js").View} */
export const layers = {
  title: "Layers",
  fragment: "layers",
  lacks: ({ diagnosis }) => (diagnosis.layers ? "" : "No trace names the model's modules, and no operators repeat from layer to layer: capture with Doctor.watch(model), or profile with with_stack=True."),
  render(element, shown) {
    const modules = shown.diagnosis.layers;
    if (!modules) {
      element.append(h("p", { class: "note" }, layers.lacks?.(shown)));
      return;
    }
    const place = h("div");
    /** @type {(path: string) => void} */
    let choose = () => {};
    element.append(h("div", { class: "cards" }, h("p", { class: "note" }, from(modules)), place, ...steps(modules), card("Modules", modules.said.map((sentence) => h("p", { class: "note" }, `${sentence[0].toUpperCase()}${sentence.slice(1)}`)), table(modules, shown))));
    return detail(place, shown.diagnosis.name, "layers", (/** @type {import("../layers/tree.js").Told} */ told) => {
      const made = explorer(told, shown, strip(modules, (path) => choose(path)));
      choose = (path) => {
        made.choose(path);
        made.body.scrollIntoView({ block: "start" });
      };
      return [made.body];
    });
  },
  keys: [["Arrow keys, Enter", "move over the boxes of modules; choose one"]],
  table: ({ diagnosis }) => {
    const modules = diagnosis.layers;
    if (!modules) return null;
    const used = partsOf(modules);
    return () => ({
      heads: ["module", "step, ms", ...used.map(({ name }) => `${name}, ms`), "longest, ms", "rank"],
      rows: modules.rows.map((row) => [row.path || WHOLE, row.step_ms, ...used.map(({ of }) => /** @type {number} */ (row[of])), row.longest_ms, row.longest_rank]),
    });
  },
};

/** @param {LayerTable} modules */
const partsOf = ({ rows }) => PARTS.filter(({ of }) => rows.some((row) => Number(row[of]) > 0));

/** @param {LayerTable} modules */
function from({ named_by, layer_events }) {
  const said = layer_events
    ? `Nothing names modules here: these layers are guesses, operators that repeat (${count(layer_events, "kernel")} each).`
    : `Modules are named by ${named_by}.`;
  return `${said} Times of a step, the median over ranks. Each kernel counts for the module that launched it, in backward for the one of its forward; exposed communication, with straggler wait, for the module whose backward launched it, and idle time for the module whose kernel follows.`;
}

/**
 * @param {LayerRow} row
 * @param {LayerTable} modules
 */
function segments(row, modules) {
  return partsOf(modules).map(({ of, colour }) => h("b", { class: `owner-${colour}`, style: `flex: ${Number(row[of])} 1 0` }));
}

/**
 * @param {LayerRow} row
 * @param {LayerTable} modules
 */
function said(row, modules) {
  const parts = partsOf(modules).filter(({ of }) => Number(row[of]) > 0).map(({ of, name }) => `${name} ${ms(Number(row[of]))}`);
  return `${row.path || "Whole step"}: ${ms(row.step_ms)}, ${percent(row.step_ms / Math.max(modules.rows[0].step_ms, 1e-9))} of the step; ${parts.join(", ")}. The longest is ${ms(row.longest_ms)}, on rank ${row.longest_rank}.`;
}

/**
 * @param {LayerTable} modules
 * @param {(path: string) => void} choose a module
 */
function strip(modules, choose) {
  const some = layersOf(modules.rows);
  if (!some.length) return null;
  const longest = Math.max(...some.map(({ longest_ms }) => longest_ms));
  const guessed = modules.layer_events ? ", guessed from repeats" : "";
  const start = begun(some.map(nameOf));
  const named = start && !/^layer\s$/.test(start) ? ` Names begin with ${start}.` : "";
  return card(
    `The ${some.length} layers`,
    h("p", { class: "note" }, `ms a step, the median over ranks${guessed}; the outline is the rank that takes longest.${named}`),
    h(
      "ul",
      { class: "layers-strip" },
      some.map((row) =>
        h(
          "li",
          { title: said(row, modules) },
          h("span", { class: "number" }, plain(row.step_ms, longest)),
          h(
            "div",
            { class: "column" },
            h("i", { class: "outline", style: `height: ${(100 * row.longest_ms) / longest}%` }),
            h("i", { class: "stack", style: `height: ${(100 * row.step_ms) / longest}%` }, segments(row, modules)),
          ),
          h("button", { type: "button", class: "name", "aria-label": row.path, click: () => choose(row.path) }, nameOf(row).slice(start.length)),
        ),
      ),
    ),
  );
}

/** A difference of less has no colour, ms. */
const LEAST_MS = 0.005;

/**
 * The slowest step less the median one.
 * @param {LayerTable} modules
 */
function steps({ rows, kernels, slowest_step, median_step, step_ranks }) {
  if (slowest_step === null || median_step === null || rows[0].slowest_step_ms === null) return [];
  const of = (/** @type {{slowest_step_ms: number | null, median_step_ms: number | null}} */ { slowest_step_ms, median_step_ms }) => ({ before_ms: median_step_ms ?? 0, after_ms: slowest_step_ms ?? 0 });
  const { before_ms, after_ms } = of(rows[0]);
  return [
    card(
      `Step ${slowest_step}, the slowest, less step ${median_step}, the median one`,
      h("p", { class: "note" }, `${ms(after_ms)} less ${ms(before_ms)}, the median over ${step_ranks === 1 ? "the rank that has" : `${step_ranks} ranks that have`} these steps. A box is as wide as the difference, and at least as wide as all boxes within it: red takes longer in step ${slowest_step}, blue shorter. Kernels stand below their modules.`),
      ...difference(
        rows.map((row) => ({ path: row.path, level: row.level, ...of(row) })),
        kernels.map((kernel) => ({ ...kernel, ...of(kernel) })),
        { before: `in step ${median_step}`, after: `in step ${slowest_step}`, least: LEAST_MS, shorter: "accent" },
      ),
    ),
  ];
}

const WHOLE = "whole step";

/**
 * From a module to its kernels and operators in the timeline.
 * @param {Shown} shown
 */
const events = ({ views, link }) => (/** @type {string} */ path, /** @type {string} */ text) => {
  if (!views || views.from_digests || path === WHOLE) return null;
  const anchor = link("timeline", { find: path });
  anchor.textContent = text;
  return anchor;
};

const giga = (/** @type {number} */ amount) => decimals(amount / 1e9, amount < 1e11 ? 2 : 0);
const megabytes = (/** @type {number} */ bytes) => decimals(bytes / 1e6, 1);

/**
 * @param {LayerTable} modules
 * @param {Shown} shown
 */
function table(modules, shown) {
  const used = partsOf(modules);
  const whole = Math.max(modules.rows[0].step_ms, 1e-9);
  const hasMemory = modules.rows[0].peak_bytes !== null;
  const hasPath = modules.rows[0].critical_ms !== null;
  const hasBeside = modules.rows[0].beside_ms !== null;
  const hasWork = modules.rows[0].flops !== null;
  const hasOptimizer = modules.rows[0].optimizer_ms !== null;
  return grid({
    title: "layers",
    shown,
    search: "Filter",
    sort: 1,
    columns: [
      { head: "module", show: shortPath, link: events(shown) },
      { head: "step", quantity: "time of a module", unit: "ms", show: plain, bar: true, title: "with all modules within it, the median over ranks" },
      { head: "share", quantity: "share of a module", show: percent, title: "of the step" },
      ...used.map(({ name }) => ({ head: name === "outside forward and backward" ? "other" : name, quantity: "part of a module's time", unit: "ms", show: plain, title: name })),
      { head: "longest", unit: "ms", show: plain, title: "the largest of all ranks" },
      { head: "(rank)", title: "the rank with the longest" },
      { head: "p99", quantity: "p99 of a module", unit: "ms", show: plain, title: "the 99th percentile over steps" },
      ...(hasPath ? [{ head: "critical", quantity: "critical path in a module", unit: "ms", show: plain, title: "of the critical path in a step" }] : []),
      ...(hasOptimizer ? [{ head: "optimizer", quantity: "optimizer's time of a module", unit: "ms", show: plain, title: "an estimate: the optimizer's time by the elements of gradients; in no other column" }] : []),
      ...(hasMemory ? [{ head: "peak, MB", quantity: "memory of a module", show: megabytes, title: "what it allocated of what is allocated at the peak, with all modules within it" }, { head: "allocates, MB", quantity: "memory of a module", show: megabytes, title: "all that it allocates in a step" }] : []),
      ...(hasBeside ? [{ head: "beside", quantity: "time beside communication", unit: "ms", show: plain, title: "in which communication runs beside its kernels" }, { head: "longer", quantity: "time beside communication", unit: "ms", show: plain, title: "how much longer these kernels take than the same ones without communication beside them" }] : []),
      ...(hasWork
        ? [
            { head: "above", quantity: "work of a module", unit: "ms", show: plain, title: "time above what the GPU needs for its operators' FLOPs and bytes" },
            { head: "GFLOP", quantity: "work of a module", show: giga, title: "FLOPs of its operators in a step" },
            { head: "GB", quantity: "work of a module", show: giga, title: "bytes that its operators read and write in a step, each tensor once" },
          ]
        : []),
    ],
    rows: modules.rows.map((row) => [row.path || WHOLE, row.step_ms, row.step_ms / whole, ...used.map(({ of }) => Number(row[of])), row.longest_ms, row.longest_rank, row.p99_ms, ...(hasPath ? [row.critical_ms] : []), ...(hasOptimizer ? [row.optimizer_ms] : []), ...(hasMemory ? [row.peak_bytes, row.allocated_bytes] : []), ...(hasBeside ? [row.beside_ms, row.beside_longer_ms] : []), ...(hasWork ? [row.above_ms, row.flops, row.moved_bytes] : [])]),
  });
}
