// The recorded and the predicted step as bars of owners, in the Budget's colours and on one scale.

import { h } from "../dom.js";
import { decimals, ms, signed } from "../format.js";
import { whenOf } from "../model.js";
import { OWNERS } from "../step_parts.js";

/** @typedef {import("../../schema.js").PlanResult} PlanResult */

/** A part narrower than this share of the longer bar has no room for its number. */
const LABELLED = 0.05;

/**
 * @param {PlanResult} plan
 * @param {boolean} gpu whether a GPU computes
 */
export function bars({ now_ms, owners_ms, prediction }, gpu) {
  const then = prediction?.step_ms ?? now_ms;
  const longest = Math.max(now_ms, then) || 1;
  const after = prediction?.owners_ms ?? owners_ms;
  const shown = [...OWNERS].filter(([id]) => Math.max(owners_ms[id] ?? 0, after[id] ?? 0) > longest / 400);
  return h(
    "div",
    { class: "plan-bars" },
    row("now", "measured", now_ms, owners_ms, longest),
    row("then", "predicted", then, after, longest, prediction ? signed(then - now_ms, 1) : ""),
    h("ul", { class: "legend flush textured" }, shown.map(([id, owner]) => h("li", { title: whenOf(owner, gpu) }, h("i", { class: `owner-${id}` }), owner.name))),
  );
}

/**
 * @param {string} kind
 * @param {string} name
 * @param {number} step ms
 * @param {Record<string, number>} owners ms
 * @param {number} longest ms
 * @param {string} [change]
 */
function row(kind, name, step, owners, longest, change = "") {
  const parts = [...OWNERS].map(([id, { name: owner }]) => ({ id, owner, value: owners[id] ?? 0 })).filter(({ value }) => value > 0);
  const said = parts.filter(({ value }) => value > longest / 400).map(({ owner, value }) => `${owner} ${ms(value)}`);
  return h(
    "div",
    { class: `row plan-bar ${kind}` },
    h("span", { class: "rank" }, name),
    h(
      "div",
      { class: "bar textured", style: `width: ${(100 * step) / longest}%`, role: "img", "aria-label": `${name} ${ms(step)}: ${said.join(", ")}` },
      parts.map(({ id, owner, value }) =>
        h("span", { class: `part owner-${id}`, style: `flex: ${value} 1 0`, title: `${owner} ${ms(value)}` }, value > LABELLED * longest && h("span", {}, decimals(value, 1))),
      ),
    ),
    h("span", { class: "total", "data-quantity": "step time" }, ms(step), change && h("small", {}, change)),
  );
}
