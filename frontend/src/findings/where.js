// Where a finding occurs, in how long gaps, and what it causes: the time of the owner that its fix removes, by rank and
// step, the sum first.

import { concentration, gapSum, histogram, rowsOf } from "../chart/histogram.js";
import { h } from "../dom.js";
import { count, ms } from "../format.js";
import { mean, ownerName, ownerOf } from "../model.js";
import { byRank, lengthOf, stepToShow } from "../verdict/path.js";
import { cells } from "./cells.js";

/** @typedef {import("../model.js").Finding} Finding */
/** @typedef {import("../views.js").Shown} Shown */

/**
 * @param {Finding} finding
 * @param {Shown} shown
 * @param {() => void} selected called when a rank and a step are
 */
export function where(finding, shown, selected) {
  const { views, place, keep } = shown;
  const owner = ownerOf(finding);
  if (!views?.budget_ms[owner]) return null;
  const facts = effects(finding, shown);
  const chosen = { rank: place.rank ?? "", step: place.step ?? "" };
  const select = (/** @type {number} */ rank, /** @type {number} */ step) => {
    keep({ finding: finding.id, rank: String(rank), step: String(step) });
    selected();
  };
  return h(
    "div",
    { class: "occurs" },
    h("p", { class: "amount" }, sum(finding, shown.diagnosis, owner)),
    h(
      "div",
      { class: "side-by-side" },
      h("div", { class: "place" }, h("h3", {}, `Where: ${ownerName(owner)}, ms per rank and step`), cells(finding, views, owner, chosen, select)),
      lengths(finding, owner),
      facts.length ? h("div", {}, h("h3", {}, "What it causes"), h("dl", { class: "effects" }, facts.map(([value, what]) => h("div", {}, h("dt", {}, value), h("dd", {}, what))))) : null,
    ),
  );
}

/**
 * How long its gaps are, on its ranks and in its steps.
 * @param {Finding} finding
 * @param {string} owner
 */
function lengths({ gaps, steps }, owner) {
  const own = gaps[owner];
  if (!own) return null;
  const few = concentration(rowsOf(own));
  return h("div", {}, h("h3", {}, "How long: gaps by length"), histogram(own, owner), h("p", { class: "note" }, `${gapSum(own)} in ${count(steps.length, "step")}${few && `: ${few}`}.`));
}

/**
 * "138.7 ms a step of CPU outside any op on rank 1, at most 0.1 ms on any other rank".
 * @param {Finding} finding
 * @param {import("../model.js").Diagnosis} diagnosis
 * @param {string} owner
 */
function sum(finding, diagnosis, owner) {
  const { mine, others } = meansOf(finding, diagnosis, owner);
  const on = mine.length === 1 ? `rank ${finding.ranks[0]}` : others.length ? `${count(mine.length, "rank")}, mean` : `all ${count(mine.length, "rank")}, mean`;
  const rest = others.length ? `; at most ${ms(others.reduce((most, value) => Math.max(most, value)))} on any other rank` : "";
  return `${ms(mean(mine))} a step of ${ownerName(owner)} on ${on}${rest}.`;
}

/**
 * What an owner has a step, ms, of each of its ranks and of each other.
 * @param {Finding} finding
 * @param {import("../model.js").Diagnosis} diagnosis
 * @param {string} owner
 */
function meansOf(finding, { ranks, budget_ms }, owner) {
  const affected = new Set(finding.ranks);
  /** @type {{mine: number[], others: number[]}} */
  const found = { mine: [], others: [] };
  for (const rank of ranks) (affected.has(rank) ? found.mine : found.others).push(budget_ms[rank]?.[owner] ?? 0);
  return found;
}

/**
 * @param {Finding} finding
 * @param {Shown} shown
 * @returns {[string, string][]}
 */
function effects(finding, { diagnosis, place }) {
  const affected = new Set(finding.ranks);
  const others = diagnosis.ranks.filter((rank) => !affected.has(rank));
  /** @type {[string, string][]} */
  const found = [];
  if (others.length) {
    const waits = meansOf(finding, diagnosis, "wait").others;
    found.push([ms(mean(waits)), `straggler wait a step on ${others.length === 1 ? `rank ${others[0]}` : `the ${count(others.length, "other rank")}, mean`}, whichever rank it is for`]);
  }
  const path = diagnosis.critical_path ?? [];
  if (path.length && others.length) {
    const step = stepToShow(path, place.step ? Number(place.step) : null);
    const on = byRank(step).filter(({ key }) => affected.has(key)).reduce((total, one) => total + one.ms, 0);
    found.push([`${ms(on)} of ${ms(lengthOf(step))}`, `of the critical path of step ${step.step} on ${finding.ranks.length === 1 ? `rank ${finding.ranks[0]}` : `these ${count(finding.ranks.length, "rank")}`}`]);
  }
  return found;
}
