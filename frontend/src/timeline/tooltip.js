// What is under the pointer, beside it.

import { h } from "../dom.js";
import { ms } from "../format.js";
import { valueAt } from "./curves.js";
import { sentence } from "./events.js";
import { written } from "./rows.js";

/** From the pointer, CSS pixels. */
const [RIGHT, BELOW, EDGE] = [12, 18, 8];

/**
 * @param {HTMLElement} tooltip
 * @param {import("./rows.js").Laid} laid
 * @param {import("./walk.js").Chosen} one
 * @param {number} zero us, where the axis begins
 * @param {{x: number, y: number, width: number}} at the pointer, and how wide the picture is, CSS pixels
 */
export function tell(tooltip, laid, one, zero, { x, y, width }) {
  const row = laid.rows[one.row];
  const said = sentence(laid, one.row, one.index, zero).split(", ");
  tooltip.hidden = false;
  tooltip.replaceChildren(
    h("b", {}, written(row, one.index, laid.joined)),
    h("span", {}, ms((row.ends[one.index] - row.starts[one.index]) / 1e3)),
    h("span", {}, said.filter((part) => !part.startsWith(`${row.lane}:`)).join(", ")),
    h("span", {}, row.folded ? "Click to open the rank" : ""),
  );
  place(tooltip, x, y, width);
}

/**
 * @param {HTMLElement} tooltip
 * @param {import("./curves.js").Curve} curve
 * @param {number} us where the pointer is
 * @param {{x: number, y: number, width: number}} at
 */
export function tellCurve(tooltip, curve, us, { x, y, width }) {
  const value = valueAt(curve, us);
  if (!value) return;
  tooltip.hidden = false;
  tooltip.replaceChildren(h("b", {}, curve.title), h("span", {}, value), h("span", {}, `rank ${curve.rank}`));
  place(tooltip, x, y, width);
}

/**
 * @param {HTMLElement} tooltip
 * @param {number} x CSS pixels
 * @param {number} y
 * @param {number} width
 */
function place(tooltip, x, y, width) {
  const room = width - tooltip.offsetWidth - EDGE;
  tooltip.style.cssText = `left: ${Math.max(0, Math.min(x + RIGHT, room))}px; top: ${y + BELOW}px`;
}
