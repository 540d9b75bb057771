// The floor opened: what the device could do at these shapes, and what is above it. Its lines sum to the floor.

import { h } from "../dom.js";
import { decimals, ms, percent, range, remainder, sumDigits } from "../format.js";
import { faults, line } from "../model.js";
import { tip } from "../tips.js";

/** @typedef {import("../model.js").Diagnosis} Diagnosis */
/** @typedef {Diagnosis["account"]["floor_lines"][number]} FloorLine */

/** Smaller parts of the step are in the list only. */
const LEAST_DRAWN = 0.001;
/** Classes that are named beside a line. */
const NAMED = 4;

/** @param {FloorLine} line */
const nameOf = ({ kind }) => kind.replace(/-/g, " ");

/**
 * Open where the job has no fault: the floor is then what is left to gain from.
 * @param {import("../views.js").Shown} shown
 */
export function openedFloor({ diagnosis, link }) {
  const floor = line(diagnosis, "floor");
  const lines = summing(diagnosis.account.floor_lines ?? [], floor.ms);
  const judged = lines.some(({ kind, total_ns }) => kind !== "not-modelled" && kind !== "limit" && total_ns > 0);
  if (!judged || !(floor.ms > 0)) return null;
  const drawn = lines.filter(({ share }) => share >= LEAST_DRAWN);
  const digits = sumDigits(floor.ms);
  const more = link("operators");
  more.textContent = "Kernel by kernel in Compute";
  return h(
    "details",
    { class: "opened-floor folded", open: !faults(diagnosis).length },
    h("summary", {}, "The floor opened"),
    h("div", { class: "head" }, h("h3", {}, `${ms(floor.ms)} of floor `, tip("limit")), h("p", { class: "sum" }, `${decimals(floor.ms, digits)} = ${lines.filter(({ total_ns }) => total_ns > 0).map((one) => `${decimals(one.ms, digits)}\u00a0${nameOf(one)}`).join(" + ")} (ms)`)),
    h(
      "div",
      { class: "account-bar of-floor", role: "img", "aria-label": drawn.map((one) => `${nameOf(one)} ${ms(one.ms)}`).join(", "), style: `width: ${100 * floor.share}%` },
      drawn.map((one) => h("div", { class: `part floor-${one.kind}`, style: `flex: ${one.ms} 1 0`, title: `${nameOf(one)}: ${ms(one.ms)}, ${percent(one.share)}` })),
    ),
    h("ul", { class: "account of-floor" }, drawn.map(item)),
    h("p", { class: "more" }, more),
  );
}

/**
 * The lines as they are shown: the limit takes what rounding leaves of their sum.
 * @param {FloorLine[]} lines
 * @param {number} floor ms
 */
const summing = (lines, floor) =>
  lines.map((one) => (one.kind === "limit" ? { ...one, ms: remainder(floor, lines.filter((other) => other !== one).map(({ ms: other }) => other)) } : one));

/** @param {FloorLine} one */
function item(one) {
  const [least, most] = one.range_ms;
  const classes = Object.entries(one.by_class).slice(0, NAMED).map(([name, value]) => `${name} ${decimals(value, 1)}`);
  const beside = [percent(one.share), classes.join(", "), most > least && `${range(least, most)} with writes`].filter(Boolean).join(" · ");
  return h("li", { title: one.note || null }, h("i", { class: `floor-${one.kind}` }), h("b", { class: "cost" }, ms(one.ms)), h("span", { class: "title" }, nameOf(one)), h("small", {}, beside));
}
