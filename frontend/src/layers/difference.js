// The difference of two runs by modules, as a flame graph's: boxes below each other as in Layers, as wide as a module is in
// the run where it takes longer, red where a step spends more in it now, green where less.

import { h } from "../dom.js";
import { ms, signed } from "../format.js";
import { boxes, nameOf } from "./model.js";

/** @typedef {import("../../schema.js").ModuleChange} ModuleChange */

/** Narrower boxes are not drawn: the table has them. */
const LEAST_BOX = 0.004;
const ROW_PX = 30;
/** Of the colour in the box that changed most, percent: letters on it stay readable. */
const FULL = 45;

/** @param {ModuleChange} change */
const by = ({ before_ms, after_ms }) => after_ms - before_ms;
/** @param {number} change ms */
const written = (change) => signed(change, Math.abs(change) >= 9.995 ? 1 : 2);

/**
 * @param {ModuleChange[]} changes
 * @param {number} least ms: what changes by less has no colour
 */
export function difference(changes, least) {
  const rows = changes.map((one) => ({ ...one, step_ms: Math.max(one.before_ms, one.after_ms) }));
  const most = Math.max(...rows.map((row) => Math.abs(by(row))));
  const frame = h("div", { class: "modules" });
  const readout = h("p", { class: "readout", role: "status" }, "Choose a module to see what is within it.");
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
    const colour = Math.abs(change) < least ? "" : change < 0 ? "healthy" : "critical";
    const strength = most > 0 ? (FULL * Math.abs(change)) / most : 0;
    const said = `${row.path || "Whole step"}: ${ms(row.before_ms)} before, ${ms(row.after_ms)} after, ${signed(change, 2)} ms${row.before_ms > 0 ? ` (${signed((100 * change) / row.before_ms, 1)} %)` : ""}.`;
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
      h("span", {}, h("b", {}, nameOf(row)), ` ${written(change)}`),
    );
  }
}
