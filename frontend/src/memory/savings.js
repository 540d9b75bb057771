// What would save memory, and what it costs.

import { card, copyable, h } from "../dom.js";
import { ms } from "../format.js";
import { size } from "./contents.js";

/** @typedef {import("../../schema.js").Memory} Memory */
/** @typedef {import("../../schema.js").MemorySaving} Saving */

/** @param {Memory} memory */
export function savings({ savings: some, peak }) {
  if (!some.length) return null;
  return card(
    "What would save memory",
    h("p", { class: "note" }, `On rank ${peak.rank}, at most, each alone. Cost: what a step takes longer.`),
    h("ul", { class: "memory-savings" }, some.map((one) => item(one, some[0].bytes))),
  );
}

/**
 * @param {Saving} saving
 * @param {number} most bytes
 */
function item({ title, bytes, cost_ms, why, fix_parts: { advice, code } }, most) {
  const cost = cost_ms === null ? "cost not known" : cost_ms > 0 ? `+${ms(cost_ms)} a step` : "no cost";
  return h(
    "li",
    {},
    h(
      "details",
      { class: "folded" },
      h(
        "summary",
        {},
        h("b", { title: "saved at most" }, size(bytes)),
        h("i", { class: "memory-saved", style: `background-size: ${(100 * bytes) / most}% 100%` }),
        h("span", {}, title),
        h("small", { title: "what a step takes longer" }, cost),
      ),
      h("p", { class: "note" }, why),
      h("p", {}, advice),
      code ? copyable(code) : null,
    ),
  );
}
