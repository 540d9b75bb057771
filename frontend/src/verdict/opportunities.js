// What is no fault and could be faster still: a letter each, what to do, and what the step would save. The letters are
// those of the findings view and of the terminal.

import { h, prose } from "../dom.js";
import { interval, ms, percent, range, sumShown } from "../format.js";
import { letterOf } from "../model.js";
import { tip } from "../tips.js";
import { mark } from "./badge.js";

/** @typedef {import("../model.js").Finding} Finding */
/** @typedef {import("../views.js").Shown} Shown */

/** @param {Shown} shown */
export function opportunities(shown) {
  const { diagnosis } = shown;
  const all = diagnosis.opportunities;
  if (!all.length) return null;
  const longest = Math.max(...all.map(({ range_ms: [, most] }) => most));
  return h(
    "section",
    { class: "card opportunities", "data-quantity": "opportunity" },
    h(
      "div",
      { class: "head" },
      h("h2", {}, "Opportunities ", tip("opportunity")),
      h("p", { class: "sum" }, "would save a step · 80\u00a0% interval ", tip("80 % interval")),
    ),
    h("p", { class: "note" }, "None of these is a fault: what the job could gain besides."),
    h("ol", {}, all.map((one) => row(one, shown, longest))),
    all.length > 1 && h("p", { class: "note" }, `Each on top of those charged before it: all ${all.length} save ${ms(sumShown(all.map(({ cost_ms }) => cost_ms)))}.`),
  );
}

/**
 * @param {Finding} one
 * @param {Shown} shown
 * @param {number} longest ms at the right end of the intervals' scale
 */
function row(one, { diagnosis, link }, longest) {
  const to = link("findings", { finding: one.id });
  to.append(...prose(one.title));
  const { advice, code } = one.fix_parts;
  return h(
    "li",
    { "aria-label": `Opportunity ${letterOf(diagnosis, one.id)}` },
    mark(diagnosis, one.id),
    h("div", { class: "title" }, to, h("small", {}, `would save · ${one.rule}`)),
    whisker(one.range_ms, one.cost_ms, longest),
    h("div", { class: "cost" }, ms(one.cost_ms), h("small", { title: interval(...one.range_ms) }, `${percent(one.cost_ms / diagnosis.step_ms)} · ${range(...one.range_ms)}`)),
    h("dl", {}, h("dt", {}, "Do"), h("dd", {}, prose(advice), code ? h("code", { class: "first-line" }, code.split("\n")[0]) : null), h("dt", {}, "Seen"), h("dd", {}, prose(one.why))),
  );
}

/**
 * The interval as a line and the saving as a mark in it, on one scale for all.
 * @param {number[]} range
 * @param {number} cost
 * @param {number} longest
 */
function whisker([least, most], cost, longest) {
  const at = (/** @type {number} */ value) => `${(100 * value) / longest}%`;
  return h(
    "span",
    { class: "whisker", "aria-hidden": "true" },
    h("i", { style: `left: ${at(least)}; width: ${at(most - least)}` }),
    h("b", { style: `left: ${at(cost)}` }),
  );
}
