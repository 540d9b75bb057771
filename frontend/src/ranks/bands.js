// How each owner spreads over many ranks: a bar from p25 to p75 on a band from p1 to p99, the median, and the affected
// ranks beside it.

import { h } from "../dom.js";
import { decimals, ms, ranges } from "../format.js";
import { ownerName } from "../model.js";
import { spreadOf } from "./spread.js";

/** Groups that have a mark of their own. */
const MARKED = 2;
const MARKS = ["○", "△"];

/**
 * @param {number[]} all ranks
 * @param {ReturnType<typeof import("./spread.js").ownersOf>} owned
 * @param {import("./spread.js").Group[]} groups
 */
export function bands(all, owned, groups) {
  const row = new Map(all.map((rank, i) => [rank, i]));
  const marked = groups.filter(({ name }) => !name).slice(0, MARKED);
  const median = (/** @type {number[]} */ values, /** @type {number[]} */ some) => spreadOf(some.map((rank) => values[row.get(rank) ?? 0])).median;
  const owners = owned.map(({ owner, values }) => ({ owner, spread: spreadOf(values), medians: marked.map(({ ranks }) => median(values, ranks)) }));
  const most = Math.max(...owners.map(({ spread }) => spread.max)) || 1;
  const share = (/** @type {number} */ value) => `${decimals((100 * value) / most, 2)}%`;
  const nameOf = (/** @type {number[]} */ some) => (some.length > 4 ? `${some.length} ranks` : `rank${some.length > 1 ? "s" : ""} ${ranges(some)}`);
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "Budget of all ranks" },
    h(
      "table",
      { class: "bands" },
      h("thead", {}, h("tr", {}, ["owner", "p1 – p99, p25 – p75", "median, ms", "p99, ms", ...marked.map(({ ranks }, i) => `${MARKS[i]} ${nameOf(ranks)}`)].map((head) => h("th", { scope: "col" }, head)))),
      h(
        "tbody",
        {},
        owners.map(({ owner, spread, medians }) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, ownerName(owner)),
            h(
              "td",
              {},
              h(
                "div",
                { class: "band", role: "img", "aria-label": `${ownerName(owner)}: p1 ${ms(spread.p1)}, p25 ${ms(spread.p25)}, median ${ms(spread.median)}, p75 ${ms(spread.p75)}, p99 ${ms(spread.p99)}` },
                h("i", { class: `wide owner-${owner}`, style: `left: ${share(spread.p1)}; width: max(1px, ${share(spread.p99 - spread.p1)})` }),
                h("i", { class: `narrow owner-${owner}`, style: `left: ${share(spread.p25)}; width: max(2px, ${share(spread.p75 - spread.p25)})` }),
                medians.map((value, i) => h("b", { style: `left: ${share(value)}` }, MARKS[i])),
              ),
            ),
            h("td", {}, decimals(spread.median, 2)),
            h("td", {}, decimals(spread.p99, 2)),
            medians.map((value) => h("td", { class: Math.abs(value - spread.median) > 0.1 * most ? "affected" : null }, decimals(value, 2))),
          ),
        ),
      ),
    ),
  );
}
