// The costliest findings, numbered: where each occurs, what it costs, and how that is computed.

import { folded, h, prose } from "../dom.js";
import { among, interval, ms, percent, range } from "../format.js";
import { noteTags } from "../findings/note.js";
import { rankStepStrip } from "../lanes.js";
import { belowFaults, faults, numberOf, ownerOf, removedBy, stairs } from "../model.js";
import { tip } from "../tips.js";
import { badge } from "./badge.js";

/** @typedef {import("../model.js").Diagnosis} Diagnosis */
/** @typedef {import("../model.js").Finding} Finding */
/** @typedef {import("../views.js").Shown} Shown */

/** More of them stand in the view of their own. */
const SHOWN = 5;
/** Sums that differ by less are the same, ms. */
const SAME = 0.05;

/** @param {Shown} shown */
export function costliest(shown) {
  const { diagnosis, link } = shown;
  const all = faults(diagnosis);
  const { small, observations } = belowFaults(diagnosis);
  const more = link("findings");
  more.textContent = diagnosis.findings.length === 1 ? "Show the finding" : `All ${diagnosis.findings.length} findings`;
  return h(
    "section",
    { class: "card", "data-quantity": "cost" },
    h(
      "div",
      { class: "head" },
      h("h2", {}, all.length ? "Costliest findings" : "Findings"),
      all.length > 0 && h("p", { class: "sum" }, "cost a step · 80\u00a0% interval ", tip("80 % interval")),
    ),
    all.length
      ? h("ol", { class: "costliest" }, all.slice(0, SHOWN).map((finding) => row(finding, shown)))
      : h("p", { class: "note" }, "No finding costs 3\u00a0% of the step or more."),
    below("Other costs, not in the verdict", small, shown),
    below(observations.length > 1 ? "Observations, no cost" : "Observation, no cost", observations, shown),
    diagnosis.findings.length > 0 && h("p", { class: "more" }, more),
  );
}

/**
 * @param {Finding} finding
 * @param {Shown} shown
 */
function row(finding, { diagnosis, views, link }) {
  const to = link("findings", { finding: finding.id });
  to.append(...prose(finding.title));
  const kind = [finding.rule, finding.cause && `cause: ${finding.cause.replace(/[_-]/g, " ")}`, among(finding.ranks, diagnosis.ranks, "rank"), `${finding.steps.length} of ${diagnosis.steps.length} steps`, `confidence ${finding.confidence}`];
  const [least, most] = finding.range_ms;
  return h(
    "li",
    { class: `${finding.severity}` },
    badge(numberOf(diagnosis, finding.id)),
    h(
      "div",
      { class: "title" },
      to,
      h("small", {}, h("span", { class: "severity" }, finding.severity[0].toUpperCase() + finding.severity.slice(1)), ` · ${kind.filter(Boolean).join(" · ")}`),
      noteTags(finding, diagnosis.name),
    ),
    views ? rankStepStrip(views, finding, ownerOf(finding)) : h("span"),
    h(
      "div",
      { class: "cost" },
      ms(finding.cost_ms),
      h("small", { title: interval(least, most) }, `${percent(finding.cost_ms / diagnosis.step_ms)} · ${range(least, most)}`),
    ),
    staircase(finding, diagnosis),
    finding.measurements.length > 0 && folded(`How ${ms(finding.cost_ms)} is computed`, () => arithmetic(finding, diagnosis)),
  );
}

/**
 * Fixes that pay only together, a stair each: "first this, then that".
 * @param {Finding} finding
 * @param {Diagnosis} diagnosis
 */
function staircase(finding, diagnosis) {
  const all = stairs(diagnosis, finding);
  if (!all.length) return null;
  const saved = all.reduce((sum, one) => sum + one.ms, 0);
  const full = Math.max(saved, finding.cost_ms);
  const length = (/** @type {number} */ from, /** @type {number} */ long) => h("span", { class: "length" }, h("i", { class: `owner-${ownerOf(finding)}`, style: `left: ${(100 * from) / full}%; width: ${(100 * Math.max(long, 0)) / full}%` }));
  return h(
    "ul",
    { class: "arithmetic textured" },
    all.map(({ numbers, name, from, ms: value }, i) => h("li", {}, h("span", {}, i ? "then " : "First ", numbers.map((number) => badge(number)), ` ${name}`), length(from, value), h("b", {}, ms(value)))),
    h("li", { class: "result" }, h("span", {}, "These fixes together save"), length(0, saved), h("b", {}, ms(saved))),
  );
}

/**
 * From what the fix removes to what it saves, as bars on one scale.
 * @param {Finding} finding
 * @param {Diagnosis} diagnosis
 */
export function arithmetic(finding, { ranks, steps, account }) {
  const removed = removedBy(finding);
  const total = removed.reduce((sum, one) => sum + one.ms, 0);
  const { alone_ms: alone, cost_ms: cost } = finding;
  const full = Math.max(total, alone, cost);
  const owner = ownerOf(finding);
  const bar = (/** @type {number} */ from, /** @type {number} */ long, /** @type {string} */ of) =>
    h("span", { class: "length" }, h("i", { class: of ? `owner-${of}` : "other", style: `left: ${(100 * from) / full}%; width: ${(100 * long) / full}%` }));
  const line = (/** @type {string} */ name, /** @type {Node} */ drawn, /** @type {number} */ value, result = false) =>
    h("li", { class: result ? "result" : null }, h("span", {}, name), drawn, h("b", {}, ms(value)));
  let from = 0;
  const rows = removed.map((one) => {
    const drawn = bar(from, one.ms, one.owner);
    from += one.ms;
    return line(`${one.name}, mean over ${among(one.ranks, ranks, "rank")} and ${among(one.steps, steps, "step")}`, drawn, one.ms);
  });
  if (rows.length && total - alone > SAME) rows.push(line("less: hidden behind other work, so that the step is not shorter by it", bar(alone, total - alone, ""), alone - total));
  const how = account.method === "replay" ? "by replay of the steps without it" : "by the difference of busy times";
  const shared = Math.abs(alone - cost) > SAME;
  rows.push(line(`${shared ? "Saving if fixed alone" : "Saving"}, ${how}`, bar(0, alone, owner), alone, !shared));
  if (shared) {
    rows.push(
      alone > cost
        ? line("less: what findings charged before it save already", bar(cost, alone - cost, ""), cost - alone)
        : line("more: what shows once findings charged before it are fixed", bar(alone, cost - alone, ""), cost - alone),
      line("Cost: its line of the account", bar(0, cost, owner), cost, true),
    );
  }
  return h("ul", { class: "arithmetic textured" }, rows);
}

/**
 * Findings that the verdict does not rest on, in one line.
 * @param {string} title
 * @param {Finding[]} some
 * @param {Shown} shown
 */
function below(title, some, { diagnosis, link }) {
  if (!some.length) return null;
  const each = some.map((finding) => {
    const to = link("findings", { finding: finding.id });
    to.append(...prose(finding.title));
    return h("li", {}, badge(numberOf(diagnosis, finding.id)), h("span", { class: "title" }, to), h("span", { class: "cost" }, finding.cost_ms > 0 ? ms(finding.cost_ms) : ""));
  });
  return h("div", { class: "below" }, h("h3", {}, `${title} `, some[0].cost_ms > 0 && tip("cost")), h("ul", {}, each));
}
