// The roofline and the kernels by their time above attainable.

import { card, h } from "../dom.js";
import { ms, percent, perStep } from "../format.js";
import { grid, plain } from "../grid.js";
import { aboveOf, nameOf, rateOf, shareOf, workOf } from "./kernels.js";
import { apart } from "./names.js";
import { longestCall, roofline } from "./roofline.js";

/** @typedef {import("../views.js").Shown} Shown */
/** @typedef {import("./kernels.js").Roofline} Roofline */

/**
 * @param {Roofline} told
 * @param {Shown} shown
 */
export function cards(told, shown) {
  const modelled = told.kernels.filter(({ attainable_ms }) => attainable_ms !== null);
  const notes = told.notes.map((note) => h("p", { class: "note" }, note));
  if (!modelled.length) return [notes.length ? card("Roofline", notes) : null];
  const drawn = roofline(told, shown);
  return [
    drawn && card(`Roofline of ${told.device}`, ...drawn.filter((part) => part !== null)),
    card("Kernels by time above attainable", h("p", { class: "note" }, sum(told)), notes, table(told, shown)),
  ];
}

/** @param {Roofline} told */
function sum({ kernels, left_out }) {
  const total = kernels.reduce((all, one) => all + one.ms, 0);
  const above = kernels.reduce((all, one) => all + (aboveOf(one) ?? 0), 0);
  const unknown = kernels.reduce((all, one) => all + (one.attainable_ms === null ? one.ms : 0), 0);
  const more = left_out ? ` ${left_out.toLocaleString("en")} more kernels are not listed.` : "";
  return `${ms(total)} a step = ${ms(total - above - unknown)} attainable + ${ms(above)} above attainable + ${ms(unknown)} not modelled, mean over ranks. Attainable: FLOP at the peak or bytes at the memory's bandwidth, whichever takes longer, each tensor read or written once.${more}`;
}

/**
 * @param {Roofline} told
 * @param {Shown} shown
 */
function table({ kernels }, shown) {
  const byName = new Map(kernels.map((one, i) => [`${nameOf(one)} #${i}`, one]));
  const written = apart(kernels.map(nameOf));
  const shortOf = (/** @type {string} */ key) => {
    const name = key.replace(/\s#\d+$/, "");
    return written.get(name) ?? name;
  };
  return grid({
    title: "roofline",
    shown,
    search: "Filter",
    sort: 3,
    columns: [
      {
        head: "operator",
        show: shortOf,
        link: (key, text) => {
          const one = byName.get(key);
          const anchor = one && longestCall(one, shown);
          if (anchor) anchor.textContent = text;
          return anchor ?? null;
        },
      },
      { head: "inputs" },
      { head: "time", quantity: "time of a kernel", unit: "ms", show: plain },
      { head: "above", unit: "ms", show: plain, bar: true, title: "ms a step above attainable" },
      { head: "reached", show: percent, title: "share of the attainable speed: attainable time over time" },
      { head: "rate", title: "what it reaches of what limits it" },
      { head: "work", title: "of one call: FLOP, and bytes that it has to read and write" },
      { head: "calls", show: perStep, title: "per step and rank" },
    ],
    rows: kernels.map((one, i) => [
      `${nameOf(one)} #${i}`,
      [one.inputs, one.dtype].filter(Boolean).join(" "),
      one.ms,
      aboveOf(one),
      shareOf(one),
      rateOf(one),
      workOf(one),
      one.calls,
    ]),
  });
}
