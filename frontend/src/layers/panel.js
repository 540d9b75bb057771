// What is chosen in the Layers view: a module, an operator or a kernel, with its time on all ranks, its kernels, and the
// lines of source that launch them.

import { h } from "../dom.js";
import { decimals, ms, percent, perStep, signed } from "../format.js";
import { size } from "../communication/family.js";
import { workOf } from "../compute/kernels.js";
import { codeOf } from "../findings/code.js";
import { shortName } from "../timeline/rows.js";
import { inStep } from "./in_step.js";
import { PARTS } from "./model.js";
import { criticalOf, summed, valueOf } from "./tree.js";

/** @typedef {import("./tree.js").Told} Told */
/** @typedef {import("./tree.js").Node} Node */
/** @typedef {import("./tree.js").Shown} Measure */

/** Kernels and lines of source that are listed. */
const KERNELS = 8;
const SOURCES = 5;

/**
 * @param {Told} told
 * @param {Node[]} nodes
 * @param {number} index
 * @param {Measure} measure
 * @param {import("../views.js").Shown} shown
 * @param {(rank: number) => void} pick a rank, by its place in `ranks`; -1 for the median rank
 */
export function panel(told, nodes, index, measure, shown, pick) {
  const node = nodes[index];
  const isDifference = measure.against !== null;
  const value = valueOf(node.ms, measure);
  const whose = measure.rank < 0 ? "the median rank" : `rank ${told.ranks[measure.rank]}`;
  return h(
    "section",
    { class: "card", "aria-label": node.said },
    h("h2", {}, node.said),
    h("p", { class: "large", "data-quantity": "time of a module" }, written(value, isDifference)),
    h("p", { class: "note", "data-quantity": isDifference ? null : "share of a module" }, isDifference ? `a step, ${whose} less ${against(told, measure)}` : `a step of ${whose}, ${percent(value / Math.max(valueOf(nodes[0].ms, measure), 1e-9))} of it`),
    parts(told, node, measure),
    isDifference ? null : figures(told, nodes, node, shown.diagnosis.layers),
    told.ranks.length > 1 ? onRanks(told, node, measure, pick) : null,
    kernels(told, node, measure),
    sources(told, node, measure),
    inStep(node.path, told.ranks[measure.rank] ?? NaN, shown),
    timeline(node, shown),
  );
}

/**
 * @param {Told} told
 * @param {Measure} measure
 */
const against = ({ ranks }, { against: other }) => (other === null || other < 0 ? "the other ranks’ median" : `rank ${ranks[other]}`);

/**
 * @param {number} value
 * @param {boolean} isDifference
 */
const written = (value, isDifference) => (isDifference ? `${signed(value, 2)}\u00a0ms` : ms(value));

/**
 * Forward, backward and so on.
 * @param {Told} told
 * @param {Node} node
 * @param {Measure} measure
 */
function parts(told, node, measure) {
  const listed = PARTS.map(({ name, colour }, part) => ({ name, colour, rows: node.rows.filter((row) => told.part[row] === part) })).filter(({ rows }) => rows.length);
  if (listed.length < 2) return null;
  return h(
    "ul",
    { class: "part-list" },
    listed.map(({ name, colour, rows }) => h("li", { "data-quantity": "part of a module's time" }, h("i", { class: `owner-${colour}` }), h("span", {}, name), h("b", {}, written(valueOf(summed(told, rows), measure), measure.against !== null)))),
  );
}

/**
 * What of the critical path lies in it, and what the table says of a module beside its times: median over ranks, with all
 * modules within it.
 * @param {Told} told
 * @param {Node[]} nodes
 * @param {Node} node
 * @param {import("../../schema.js").LayerTable | null | undefined} modules
 */
function figures(told, nodes, node, modules) {
  // Bottom-up, a module stands below a kernel, and has only that.
  const isModule = node.kind === "step" || (node.kind === "module" && nodes[node.parent].kind !== "kernel" && nodes[node.parent].kind !== "operator");
  const row = isModule ? modules?.rows.find((one) => one.path === node.path) : undefined;
  /** @type {[string, string, string, string][]} */
  const listed = row ? [["p99 of a module", "p99 over steps", ms(row.p99_ms), "the 99th percentile over steps, the median over ranks"]] : [];
  const critical = criticalOf(told, node);
  if (critical !== null) {
    const share = percent(critical / Math.max(criticalOf(told, nodes[0]) ?? 0, 1e-9));
    listed.push(["critical path in a module", "on the critical path", node.kind === "step" ? ms(critical) : `${ms(critical)}, ${share} of it`, "of the critical path in a step, on all ranks together"]);
  }
  return listed.length ? h("ul", { class: "part-list figures" }, [...listed, ...(row ? ofTable(row, modules) : [])].map(([quantity, name, value, title]) => h("li", { title, "data-quantity": quantity }, h("span", {}, name), h("b", {}, value)))) : null;
}

/**
 * @param {import("../../schema.js").LayerRow} row
 * @param {import("../../schema.js").LayerTable | null | undefined} modules
 */
function ofTable(row, modules) {
  /** @type {[string, string, string, string][]} */
  const listed = [];
  if (row.optimizer_ms !== null) listed.push(["optimizer's time of a module", "optimizer, estimated", ms(row.optimizer_ms), "what the optimizer takes for its parameters, by the elements of their gradients; in none of the times above"]);
  if (row.above_ms !== null) listed.push(["work of a module", "above attainable", ms(row.above_ms), "time above what the GPU needs for its operators’ FLOPs and bytes"]);
  if (row.flops !== null && row.moved_bytes !== null) listed.push(["work of a module", "work", workOf({ flops: row.flops, bytes: row.moved_bytes }), "FLOPs, and bytes that its operators read and write, each tensor once"]);
  if (row.peak_bytes !== null && row.allocated_bytes !== null) listed.push(["memory of a module", "memory", `${size(row.peak_bytes)} at the peak, ${size(row.allocated_bytes)} a step`, "what it allocated of what is allocated at the peak, and all that it allocates in a step"]);
  if (row.beside_ms !== null && row.beside_longer_ms !== null) listed.push(["time beside communication", "beside communication", `${ms(row.beside_ms)}, ${ms(row.beside_longer_ms)} longer for it`, "in which communication runs beside its kernels, and how much longer these take than the same ones without"]);
  if (modules && modules.slowest_step !== null && row.slowest_step_ms !== null && row.median_step_ms !== null)
    listed.push(["time of a module", `in step ${modules.slowest_step}, the slowest`, `${ms(row.slowest_step_ms)}, ${signed(row.slowest_step_ms - row.median_step_ms, 2)}\u00a0ms`, `and how much more that is than in step ${modules.median_step}, the median one`]);
  return listed;
}

/**
 * @param {Told} told
 * @param {Node} node
 * @param {Measure} measure
 * @param {(rank: number) => void} pick
 */
function onRanks(told, node, measure, pick) {
  const longest = Math.max(...node.ms, 1e-9);
  const of = PARTS.map(({ colour }, part) => ({ colour, time: summed(told, node.rows.filter((row) => told.part[row] === part)) }));
  const many = told.ranks.length < told.all_ranks ? `${told.ranks.length} of ${told.all_ranks.toLocaleString("en")} ranks` : "All ranks";
  return h(
    "div",
    {},
    h("h3", {}, `${many}, ms a step`),
    h(
      "ol",
      { class: "rank-bars", tabindex: 0, "aria-label": "Time on each rank" },
      told.ranks.map((rank, i) =>
        h(
          "li",
          {},
          h("button", { type: "button", "aria-pressed": String(i === measure.rank), click: () => pick(i === measure.rank ? -1 : i) }, `rank ${rank}`),
          h("span", { class: "track" }, h("i", { style: `width: ${(100 * node.ms[i]) / longest}%` }, of.map(({ colour, time }) => h("b", { class: `owner-${colour}`, style: `flex: ${time[i]} 1 0` })))),
          h("span", { class: "number", "data-quantity": "time of a module" }, decimals(node.ms[i], 2)),
        ),
      ),
    ),
  );
}

/**
 * What runs in it, by part, operator and kernel, the longest first.
 * @param {Told} told
 * @param {Node} node
 * @param {Measure} measure
 */
function kernels(told, node, measure) {
  /** @type {Map<string, {part: number, name: string, rows: number[]}>} */
  const alike = new Map();
  for (const row of node.rows) {
    const [operator, kernel] = [told.texts[told.operator[row]], shortName(told.texts[told.kernel[row]])];
    const name = kernel || operator || "other kernels";
    const key = `${told.part[row]} ${name}`;
    const one = alike.get(key) ?? { part: told.part[row], name, rows: [] };
    one.rows.push(row);
    alike.set(key, one);
  }
  const idle = told.parts.indexOf("idle");
  const listed = [...alike.values()]
    .filter(({ part }) => part !== idle)
    .map((one) => ({ ...one, value: valueOf(summed(told, one.rows), measure), calls: one.rows.reduce((sum, row) => sum + told.calls[row], 0), critical: one.rows.reduce((sum, row) => sum + (told.critical_ms?.[row] ?? 0), 0) }))
    .sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  if (!listed.length) return null;
  const rest = listed.slice(KERNELS);
  const isDifference = measure.against !== null;
  const hasPath = told.critical_ms !== null && !isDifference;
  return h(
    "div",
    {},
    h("h3", {}, "Kernels, ms a step"),
    h(
      "table",
      { class: "kernel-list" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "kernel"), h("th", { scope: "col" }, isDifference ? "more" : "step"), h("th", { scope: "col", title: "in a step, the median over ranks" }, "calls"), hasPath ? h("th", { scope: "col", title: "of the critical path in a step, on all ranks together, without the idle time before the kernel" }, "critical") : null)),
      h(
        "tbody",
        {},
        listed.slice(0, KERNELS).map(({ part, name, value, calls, critical }) =>
          h("tr", {}, h("th", { scope: "row", title: `${name}, ${PARTS[part].name}` }, h("i", { class: `owner-${PARTS[part].colour}` }), name), h("td", { "data-quantity": "time of a module" }, isDifference ? signed(value, 2) : decimals(value, 2)), h("td", {}, perStep(calls)), hasPath ? h("td", { "data-quantity": "critical path in a module" }, decimals(critical, 2)) : null),
        ),
      ),
    ),
    rest.length ? h("p", { class: "note" }, `${rest.length} more: ${written(rest.reduce((sum, { value }) => sum + value, 0), isDifference)}`) : null,
  );
}

/**
 * The lines of source that launch it, the longest first.
 * @param {Told} told
 * @param {Node} node
 * @param {Measure} measure
 */
function sources(told, node, measure) {
  /** @type {Map<number, number[]>} */
  const of = new Map();
  for (const row of node.rows) if (told.source[row] >= 0) of.set(told.source[row], [...(of.get(told.source[row]) ?? []), row]);
  if (!of.size) return null;
  const listed = [...of].map(([source, rows]) => ({ source: told.sources[source], value: valueOf(summed(told, rows), measure) })).sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  return h(
    "div",
    {},
    h("h3", {}, "Source"),
    h(
      "ul",
      { class: "source-list" },
      listed.slice(0, SOURCES).map(({ source, value }) => h("li", {}, codeOf({ source }), h("b", { "data-quantity": "time of a module" }, written(value, measure.against !== null)))),
    ),
  );
}

/**
 * @param {Node} node
 * @param {import("../views.js").Shown} shown
 */
function timeline({ path }, { views, link }) {
  if (!path || !views || views.from_digests) return null;
  const anchor = link("timeline", { find: path });
  anchor.textContent = "Show in the timeline";
  return h("p", { class: "ways" }, anchor);
}
