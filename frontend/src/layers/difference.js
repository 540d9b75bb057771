// The difference of two runs or of two steps by modules and their kernels, as a flame graph's: boxes below each other as in
// Layers, as wide as the difference, and at least as wide as all boxes within; red where the second takes longer.

import { h } from "../dom.js";
import { ms, signed } from "../format.js";
import { shortName } from "../timeline/rows.js";
import { boxes, nameOf, PARTS, parents } from "./model.js";

/** @typedef {{path: string, level: number, before_ms: number, after_ms: number}} Change of a module, with all within it */
/** @typedef {{path: string, part: string, operator: string, kernel: string, before_ms: number, after_ms: number}} KernelChange */
/** @typedef {{name: string, said: string, level: number, before_ms: number, after_ms: number, step_ms: number}} Row */

/**
 * @typedef {object} Names
 * @property {string} before what the first is called in a sentence, as "before" or "in step 3"
 * @property {string} after
 * @property {number} least ms: what changes by less has no colour
 * @property {string} shorter the colour of what takes longer in the first
 */

/** Narrower boxes are not drawn: the table has them. */
const LEAST_BOX = 0.004;
/** Kernels of a module that are drawn, those that changed most; the others are the rest of its width. */
const KERNELS = 12;
const ROW_PX = 30;
/** Of the colour in the box that changed most, percent: letters on it stay readable. */
const FULL = 45;

/** @param {{before_ms: number, after_ms: number}} change */
const by = ({ before_ms, after_ms }) => after_ms - before_ms;
/** @param {number} change ms */
const written = (change) => signed(change, Math.abs(change) >= 9.995 ? 1 : 2);

/**
 * Modules, each followed by its own kernels and the modules within it, with their widths in `step_ms`; pure.
 * @param {Change[]} changes
 * @param {KernelChange[]} kernels
 * @returns {Row[]}
 */
export function changedRows(changes, kernels) {
  /** @type {Map<string, KernelChange[]>} */
  const within = new Map();
  for (const kernel of kernels) within.set(kernel.path, [...(within.get(kernel.path) ?? []), kernel]);
  const rows = changes.flatMap((change) => [
    { name: nameOf(change), said: change.path || "Whole step", level: change.level, before_ms: change.before_ms, after_ms: change.after_ms, step_ms: Math.abs(by(change)) },
    ...(within.get(change.path) ?? [])
      .sort((a, b) => Math.abs(by(b)) - Math.abs(by(a)))
      .slice(0, KERNELS)
      .map((kernel) => rowOf(kernel, change.level + 1)),
  ]);
  const parent = parents(rows);
  const inside = rows.map(() => 0);
  for (let i = rows.length - 1; i >= 0; i--) {
    rows[i].step_ms = Math.max(rows[i].step_ms, inside[i]);
    if (parent[i] >= 0) inside[parent[i]] += rows[i].step_ms;
  }
  return rows;
}

/**
 * @param {KernelChange} kernel
 * @param {number} level
 * @returns {Row}
 */
function rowOf({ path, part, operator, kernel, before_ms, after_ms }, level) {
  const name = part === "idle" ? "GPU idle" : shortName(kernel) || operator || "other kernels";
  const where = part === "idle" ? "" : `, ${PARTS.find(({ of }) => of === `${part}_ms`)?.name ?? part}`;
  return { name, said: `${name}${where}, ${path ? `of ${path}` : "outside of all modules"}`, level, before_ms, after_ms, step_ms: Math.abs(after_ms - before_ms) };
}

/**
 * @param {Change[]} changes
 * @param {KernelChange[]} kernels
 * @param {Names} names
 */
export function difference(changes, kernels, { before, after, least, shorter }) {
  const rows = changedRows(changes, kernels);
  const most = Math.max(...rows.map((row) => Math.abs(by(row))));
  const frame = h("div", { class: "modules" });
  const readout = h("p", { class: "readout", role: "status" }, "Choose a box to see what is within it.");
  draw(0);
  return [frame, readout];

  /**
   * @param {number} root
   * @param {boolean} [focused]
   */
  function draw(root, focused = false) {
    const shown = boxes(rows, root).filter(({ share }) => share >= LEAST_BOX);
    frame.style.height = `${(Math.max(...shown.map(({ depth }) => depth)) + 1) * ROW_PX}px`;
    frame.replaceChildren(...shown.map((box) => boxOf(box, root)));
    if (focused) /** @type {HTMLElement | null} */ (frame.firstElementChild)?.focus();
  }

  /**
   * @param {import("./model.js").Box} box
   * @param {number} root
   */
  function boxOf({ index, depth, from, share }, root) {
    const row = rows[index];
    const change = by(row);
    const colour = Math.abs(change) < least ? "" : change < 0 ? shorter : "critical";
    const strength = most > 0 ? (FULL * Math.abs(change)) / most : 0;
    const said = `${row.said}: ${ms(row.before_ms)} ${before}, ${ms(row.after_ms)} ${after}, ${signed(change, 2)} ms${row.before_ms > 0 ? ` (${signed((100 * change) / row.before_ms, 1)} %)` : ""}.`;
    return h(
      "button",
      {
        type: "button",
        class: "module changed-module",
        "data-quantity": "before, after, change",
        title: said,
        "aria-label": said,
        style: `left: ${100 * from}%; width: ${100 * share}%; top: ${depth * ROW_PX}px${colour && `; background: color-mix(in srgb, var(--${colour}) ${strength}%, var(--line))`}`,
        click: () => {
          readout.textContent = said;
          draw(index === root ? 0 : index, true);
        },
        focus: () => (readout.textContent = said),
      },
      h("span", {}, h("b", {}, row.name), ` ${written(change)}`),
    );
  }
}
