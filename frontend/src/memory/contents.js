// What allocated memory is made of at its peak, by category, phase, op and rank.

import { card, folded, h, prose } from "../dom.js";
import { decimals, percent } from "../format.js";
import { grid } from "../grid.js";
import { shortPath, toModule } from "../layers/model.js";
import { MEMORY } from "../step_parts.js";
import { table } from "../table.js";

/** @typedef {import("../../schema.js").Memory} Memory */
/** @typedef {import("../views.js").Shown} Shown */

/** The share of the bar that a letter of a name in it takes: smaller parts have no room for theirs. */
const LETTER = 0.0085;

/** What is less would be shown as 0.0 MB. */
const LEAST = 5e4;

/**
 * Bytes in MB, GB from one on.
 * @param {number} bytes
 */
export const size = (bytes) =>
  !bytes ? "0\u00a0MB" : Math.abs(bytes) < LEAST ? `<${decimals((2 * LEAST) / 1e6, 1)}\u00a0MB` : Math.abs(bytes) >= 1e9 ? `${decimals(bytes / 1e9, 2)}\u00a0GB` : `${decimals(bytes / 1e6, 1)}\u00a0MB`;

/** @param {string | null} category */
export const nameOf = (category) => MEMORY.get(category ?? "")?.name ?? "";

/** @param {string} category */
export const colourOf = (category) => MEMORY.get(category)?.colour ?? "host";

/**
 * @param {Memory} memory
 * @param {Shown} shown
 */
export function contents(memory, shown) {
  return [
    card(
      "What is allocated at the peak",
      memory.said.map((sentence) => h("p", { class: "note" }, prose(sentence))),
      bar(memory.peak),
      byCategory(memory, shown),
    ),
    h(
      "div",
      { class: "memory-pair" },
      card("Change by phase", h("p", { class: "note" }, "Of allocated memory, mean over steps."), byPhase(memory, shown)),
      card("The largest allocations at the peak", largest(memory, shown)),
    ),
  ];
}

/**
 * What snapshots of torch.cuda.memory beside the traces say.
 * @param {import("../../schema.js").MemorySnapshot[]} some
 */
export function snapshots(some) {
  if (!some.length) return null;
  return card("Snapshots of torch.cuda.memory", some.map(snapshot));
}

/**
 * One snapshot: what it says, and what is allocated by category, line and module.
 * @param {import("../../schema.js").MemorySnapshot} one
 */
export function snapshot(one) {
  const share = (/** @type {number} */ bytes) => percent(bytes / Math.max(one.allocated, 1));
  const at = (/** @type {import("../../schema.js").Source | null} */ source) =>
    source ? `${source.file}:${source.line} (${source.function})` : "not in the job's own code";
  const whose = one.rank === null ? (one.file.split("/").pop() ?? "") : `Rank ${one.rank}`;
  return h(
    "div",
    { class: "snapshot" },
    h("h3", { title: one.file }, whose),
    one.allocated > 0 && bar(one),
    one.said.map((sentence) => h("p", { class: "note" }, prose(sentence))),
    one.holders.length > 0 &&
      folded("What is allocated, by line", () =>
        table(["category", "allocated", "share", "blocks", "at"], one.holders.map(({ category, bytes, count, source }) => [nameOf(category), size(bytes), share(bytes), String(count), at(source)]), `${whose}, by line`),
      ),
    one.modules.length > 0 &&
      folded("By module, in forward", () =>
        table(["module", "allocated", "share", "blocks"], one.modules.map(({ module, bytes, count }) => [module, size(bytes), share(bytes), String(count)]), `${whose}, by module`),
      ),
  );
}

/** @param {{categories: Record<string, number>}} made */
const parts = ({ categories }) => [...MEMORY].map(([id, part]) => ({ id, ...part, bytes: categories[id] ?? 0 })).filter(({ bytes }) => bytes > 0);

/** @param {{categories: Record<string, number>, allocated: number}} made */
function bar(made) {
  const some = parts(made);
  return h(
    "div",
    { class: "account-bar memory-bar", role: "img", "aria-label": some.map(({ name, bytes }) => `${name} ${size(bytes)}`).join(", ") },
    some.map(({ name, bytes, colour }) => {
      const said = `${name} ${size(bytes)}`;
      return h(
        "div",
        { class: `part owner-${colour}`, style: `flex: ${bytes} 1 0`, title: `${name}: ${size(bytes)}` },
        bytes >= LETTER * said.length * made.allocated && h("span", { class: "plate" }, h("b", {}, said)),
      );
    }),
  );
}

/**
 * @param {Memory} memory
 * @param {Shown} shown
 */
function byCategory(memory, shown) {
  return grid({
    title: "categories",
    shown,
    sort: 1,
    columns: [
      { head: "category" },
      { head: "allocated", show: size, bar: true },
      { head: "share", quantity: "share of allocated", show: percent, title: "of what is allocated at the peak" },
      { head: "meaning" },
    ],
    rows: parts(memory.peak).map(({ name, bytes, when }) => [name, bytes, bytes / memory.peak.allocated, when]),
  });
}

/**
 * @param {Memory} memory
 * @param {Shown} shown
 */
function byPhase(memory, shown) {
  const signed = (/** @type {number} */ bytes) => `${bytes > 0 ? "+" : bytes < 0 ? "−" : ""}${size(Math.abs(bytes))}`;
  return grid({
    title: "memory-phases",
    shown,
    sort: 2,
    columns: [{ head: "phase" }, { head: "change", quantity: "change in a phase", show: signed }, { head: "peak", show: size, bar: true }],
    rows: memory.phases.filter(({ peak }) => peak !== null).map(({ phase, change, peak }) => [phase, change, peak]),
  });
}

/**
 * @param {Memory} memory
 * @param {Shown} shown
 */
function largest(memory, shown) {
  const hasModules = memory.largest.some(({ module }) => module);
  return grid({
    title: "allocations",
    shown,
    sort: 1,
    columns: [
      { head: "op" },
      { head: "size", quantity: "size of a block", show: size, bar: true },
      { head: "category" },
      ...(hasModules ? [{ head: "module", show: shortPath, link: toModule(shown) }] : []),
      { head: "allocated in", title: "the line of source with Python stacks (with_stack=True), else the phase" },
    ],
    rows: memory.largest.map(({ op, bytes, category, module, source, phase }) => [
      op || "?",
      bytes,
      nameOf(category),
      ...(hasModules ? [module] : []),
      source ? `${source.file}:${source.line} (${source.function})` : phase,
    ]),
  });
}
