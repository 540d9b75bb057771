// The first five seconds: is it healthy, what is the biggest loss, who causes it, what is a fix worth.

import { cut, kindsOf } from "../cuts.js";
import { card, folded, h, prose } from "../dom.js";
import { count, decimals, ms } from "../format.js";
import { affectedRanks, faults } from "../model.js";
import { account } from "../verdict/account.js";
import { checks } from "../verdict/checks.js";
import { costliest } from "../verdict/costliest.js";
import { opportunities } from "../verdict/opportunities.js";
import { facts, headroom, tiles } from "../verdict/tiles.js";

/** @typedef {import("../model.js").Diagnosis} Diagnosis */
/** @typedef {import("../views.js").View} View */
/** @typedef {import("../views.js").Shown} Shown */

const MOST_BARS = 3;

/** @type {View} */
export const verdict = {
  title: "Summary",
  fragment: "verdict",
  render(element, shown) {
    const [worst] = faults(shown.diagnosis);
    const explained = worst && shown.diagnosis.verdict === worst.rule;
    const parts = [
      explained ? reason(worst, shown) : null,
      account(shown),
      h("div", { class: "main" }, headroom(shown), costliest(shown), opportunities(shown), where(shown)),
      h("div", { class: "side" }, tiles(shown), checks(shown)),
    ];
    element.append(...parts.filter((part) => part !== null));
  },
  table: (shown) => () => ({ heads: ["number", "value", "basis"], rows: facts(shown).map(({ name, value, basis }) => [name, value, basis]) }),
};

/**
 * What is wrong in a sentence, and what to do in another; the rest is folded.
 * @param {import("../model.js").Finding} finding
 * @param {Shown} shown
 */
function reason(finding, { link }) {
  const fix = link("findings", { finding: finding.id });
  fix.textContent = "Code and evidence";
  return h(
    "div",
    { class: "why" },
    h("p", {}, prose(finding.title)),
    h("p", { class: "do" }, h("b", {}, "Fix: "), prose(`${finding.fix_parts.first} `), fix),
    folded("How this is known", () => h("p", {}, prose(finding.why))),
  );
}

/**
 * Whose step goes where, in a few bars: the affected ranks, and the median one of the others.
 * @param {Shown} shown
 */
function where(shown) {
  const { diagnosis, link, place } = shown;
  const [kind] = kindsOf(diagnosis);
  const rows = cut(shown, kind);
  const affected = affectedRanks(diagnosis);
  const named = rows.filter(({ ranks }) => affected.has(ranks[0])).sort((a, b) => b.busy - a.busy);
  const others = rows.filter(({ ranks }) => !affected.has(ranks[0])).sort((a, b) => a.busy - b.busy);
  const middle = others[Math.floor((others.length - 1) / 2)];
  const chosen = [...named.slice(0, MOST_BARS), ...(middle ? [middle] : [])];
  if (!chosen.length) return null;
  const longest = Math.max(...chosen.map(({ total }) => total));
  const parts = kind.parts.map((part, i) => ({ ...part, i })).filter(({ i }) => chosen.some(({ values, total }) => values[i] > total / 200));
  const more = link("budget");
  more.textContent = rows.length > 1 ? `All ${count(rows.length, "rank")}` : "Budget of this rank";
  return card(
    named.length ? "Budget of the affected ranks" : "Budget of one rank",
    chosen.map((row) =>
      h(
        "div",
        { class: `row${row === middle ? "" : " affected"}` },
        h("span", { class: "rank" }, row.name, h("small", {}, row === middle && others.length > 1 ? "median rank" : row.node)),
        h(
          "div",
          {
            class: "bar textured",
            style: `width: ${(100 * row.total) / longest}%`,
            role: "img",
            "aria-label": parts.map(({ name, i }) => `${name} ${ms(row.values[i])}`).join(", "),
          },
          parts.map(({ id, colour, i }) =>
            h("span", { class: `part owner-${colour}${place.owner && place.owner !== id ? " faded" : ""}`, style: `flex: ${row.values[i]} 1 0` }, row.values[i] > longest / 20 && h("span", {}, decimals(row.values[i], 1))),
          ),
        ),
        h("span", { class: "total", "data-quantity": "step time" }, ms(row.total)),
      ),
    ),
    h("ul", { class: "legend textured" }, parts.map(({ name, when, colour }) => h("li", { title: when }, h("i", { class: `owner-${colour}` }), name))),
    h("p", { class: "more" }, more),
  );
}
