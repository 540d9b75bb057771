// The first five seconds: is it healthy, what is the biggest loss, who causes it, what is a fix worth.

import { cut, kindsOf } from "../cuts.js";
import { card, h, prose } from "../dom.js";
import { among, count, ms, percent } from "../format.js";
import { level } from "../heading.js";
import { faults, guilty, idsOf, lostMs } from "../model.js";

/** @typedef {import("../model.js").Diagnosis} Diagnosis */
/** @typedef {import("../views.js").View} View */
/** @typedef {import("../views.js").Shown} Shown */

/** More of them stand in the view of their own. */
const MOST_FINDINGS = 5;
const MOST_BARS = 3;

/** @type {View} */
export const verdict = {
  title: "Verdict",
  fragment: "verdict",
  render(element, shown) {
    const { diagnosis } = shown;
    const parts = [h("p", { class: "why" }, why(shown)), tiles(shown), worth(shown), costliest(shown), where(shown)];
    element.append(...parts.filter((part) => part !== null));
  },
  table: (shown) => ({ heads: ["number", "value", "what it rests on"], rows: facts(shown) }),
};

/** @param {Shown} shown */
function why({ diagnosis, link }) {
  const [worst] = faults(diagnosis);
  if (worst) return prose(worst.why);
  const clear = diagnosis.outcomes.filter(({ status }) => status === "clear" || status === "finding").length;
  const blind = diagnosis.outcomes.length - clear;
  if (!blind) return [`${count(clear, "rule")} looked and found nothing worth a fix.`];
  const reasons = link("quality");
  reasons.textContent = "see why";
  return [`${count(clear, "rule")} looked, ${blind} could not: `, reasons, "."];
}

/**
 * The few numbers that tell what is at stake: name, value, and what it rests on.
 * @param {Shown} shown
 * @returns {[string, string, string][]}
 */
function facts({ diagnosis, views }) {
  const { step_ms: step, world_size } = diagnosis;
  const lost = lostMs(diagnosis);
  const [worst] = faults(diagnosis);
  const processors = count(world_size, views?.device ? "GPU" : "rank");
  const hours = step > 0 ? (world_size * 24 * lost) / step : 0;
  /** @type {[string, string, string]} */
  const seen = ["Ranks seen", `${diagnosis.ranks.length} of ${world_size}`, "with a trace that could be read"];
  return [
    ["Step now", ms(step), `mean of ${count(diagnosis.steps.length, "step")}`],
    ["Step after the fixes", ms(step - lost), lost ? `predicted, ${percent(lost / step)} less` : "nothing to fix"],
    standsForAll(diagnosis)
      ? [
          `${views?.device ? "GPU" : "Rank"}-hours lost a day`,
          hours.toLocaleString("en", { maximumFractionDigits: hours < 10 ? 1 : 0 }),
          `of ${(world_size * 24).toLocaleString("en")}, with ${processors}`,
        ]
      : seen,
    worst ? ["Confidence", worst.confidence, "in the costliest finding"] : standsForAll(diagnosis) ? seen : null,
  ].filter((fact) => fact !== null);
}

/**
 * Whether what was seen may be counted up to the whole job: not from a few ranks, and not where nothing can be told.
 * @param {Diagnosis} diagnosis
 */
const standsForAll = ({ ranks, world_size, verdict }) =>
  verdict !== "unknown" && (ranks.length > 1 || world_size === 1) && 2 * ranks.length >= world_size;

/** @param {Shown} shown */
function tiles(shown) {
  return h(
    "dl",
    { class: "tiles" },
    facts(shown).map(([name, value, rest]) => h("div", {}, h("dt", {}, name), h("dd", {}, h("b", {}, value), h("small", {}, rest)))),
  );
}

/** @param {Shown} shown */
function costliest({ diagnosis, link }) {
  const all = faults(diagnosis);
  if (!all.length) return null;
  const ids = idsOf(diagnosis.findings);
  const rows = all.slice(0, MOST_FINDINGS).map((finding) => {
    const to = link("findings", { finding: ids.get(finding) ?? "" });
    to.append(...prose(finding.title));
    return h(
      "li",
      { class: finding.severity },
      h("span", { class: "severity" }, finding.severity[0].toUpperCase() + finding.severity.slice(1)),
      h("span", { class: "title" }, to, h("small", {}, among(finding.ranks, diagnosis.ranks, "rank"))),
      h("span", { class: "cost" }, ms(finding.cost_ms), h("small", {}, `${percent(finding.cost_ms / diagnosis.step_ms)} of the step`)),
    );
  });
  const more = link("findings");
  more.textContent = `All ${count(diagnosis.findings.length, "finding")}`;
  return card("What costs most", h("ul", { class: "costliest" }, rows), h("p", { class: "more" }, more));
}

/**
 * Whose step goes where, in a few bars: the accused, and a rank in the middle of the others.
 * @param {Shown} shown
 */
function where(shown) {
  const { diagnosis, link } = shown;
  const [kind] = kindsOf(diagnosis);
  const rows = cut(shown, kind);
  const accused = guilty(diagnosis);
  const named = rows.filter(({ ranks }) => accused.has(ranks[0])).sort((a, b) => b.own - a.own);
  const others = rows.filter(({ ranks }) => !accused.has(ranks[0])).sort((a, b) => a.own - b.own);
  const middle = others[Math.floor((others.length - 1) / 2)];
  const chosen = [...named.slice(0, MOST_BARS), ...(middle ? [middle] : [])];
  if (!chosen.length) return null;
  const longest = Math.max(...chosen.map(({ total }) => total));
  const parts = kind.parts.map((part, i) => ({ ...part, i })).filter(({ i }) => chosen.some(({ values, total }) => values[i] > total / 200));
  const more = link("budget");
  more.textContent = rows.length > 1 ? `All ${count(rows.length, "rank")}` : "Its budget";
  return card(
    named.length ? "Where their steps go" : "Where the step goes",
    chosen.map((row) =>
      h(
        "div",
        { class: `row${row === middle ? "" : " accused"}` },
        h("span", { class: "rank" }, row.name, h("small", {}, row === middle && others.length > 1 ? "typical" : row.node)),
        h(
          "div",
          {
            class: "bar",
            style: `width: ${(100 * row.total) / longest}%`,
            role: "img",
            "aria-label": parts.map(({ name, i }) => `${name} ${ms(row.values[i])}`).join(", "),
          },
          parts.map(({ colour, i }) =>
            h("span", { class: `part owner-${colour}`, style: `flex: ${row.values[i]} 1 0` }, row.values[i] > longest / 20 && h("span", {}, row.values[i].toFixed(1))),
          ),
        ),
        h("span", { class: "total" }, ms(row.total)),
      ),
    ),
    h("ul", { class: "legend" }, parts.map(({ name, when, colour }) => h("li", { title: when }, h("i", { class: `owner-${colour}` }), name))),
    h("p", { class: "more" }, more),
  );
}

/**
 * The step as it is, cut into what stays after the fixes and what each fix gives back.
 * @param {Shown} shown
 */
function worth({ diagnosis }) {
  const lost = lostMs(diagnosis);
  const step = diagnosis.step_ms;
  const left = step - lost;
  if (!(step > 0)) return null;
  const part = (
    /** @type {string} */ kind,
    /** @type {number} */ value,
    /** @type {string} */ rest,
    title = `${ms(value)} ${rest}`,
  ) => h("div", { class: kind, style: `flex: ${value} 1 0`, title }, h("span", {}, ms(value), h("i", {}, ` ${rest}`)));
  return h(
    "div",
    { class: "worth" },
    h(
      "div",
      { class: "track" },
      part(level(diagnosis) === "info" ? "kept info" : "kept", left, lost ? "after the fixes" : "per step"),
      faults(diagnosis).map(({ severity, cost_ms, title }) =>
        part(severity, cost_ms, "lost", `${ms(cost_ms)} lost: ${title}`),
      ),
    ),
    h(
      "div",
      { class: "scale" },
      h("span", {}, "0"),
      lost > 0 &&
        h(
          "span",
          {},
          `Predicted with the fixes: ${percent(lost / step)} less time a step`,
          left > 0 ? `, ${(step / left).toFixed(step / left < 1.95 ? 2 : 1)}× as fast` : "",
        ),
      h("span", {}, lost ? `${ms(step)} now` : ms(step)),
    ),
  );
}
