// Where a finding occurs, and what it causes: the time of the owner that its fix removes, by rank and step, the sum first.

import { h } from "../dom.js";
import { count, ms } from "../format.js";
import { largest, mean, ownerName, ownerOf } from "../model.js";
import { perRank } from "../ranks/spread.js";
import { byRank, lengthOf, stepToShow } from "../verdict/path.js";

/** @typedef {import("../model.js").Finding} Finding */
/** @typedef {import("../model.js").Views} Views */
/** @typedef {import("../views.js").Shown} Shown */

/** @typedef {{rank: string, step: string}} Chosen "" for none */

/** More ranks and steps are not for reading; the affected come first. */
const RANKS = 12;
const STEPS = 12;

/**
 * @param {Finding} finding
 * @param {Shown} shown
 * @param {() => void} selected called when a rank and a step are
 */
export function where(finding, shown, selected) {
  const { views, place, keep } = shown;
  const owner = ownerOf(finding);
  const grid = views?.budget_ms[owner];
  if (!views || !grid) return null;
  const facts = effects(finding, shown);
  /** @type {Chosen} */
  const chosen = { rank: place.rank ?? "", step: place.step ?? "" };
  const select = (/** @type {number} */ rank, /** @type {number} */ step) => {
    keep({ finding: finding.id, rank: String(rank), step: String(step) });
    selected();
  };
  return h(
    "div",
    { class: "occurs" },
    h("p", { class: "amount" }, sum(finding, views, owner)),
    h(
      "div",
      { class: "two" },
      h("div", {}, h("h3", {}, `Where: ${ownerName(owner)}, ms per rank and step`), cells(finding, views, grid, owner, chosen, select)),
      facts.length ? h("div", {}, h("h3", {}, "What it causes"), h("dl", { class: "effects" }, facts.map(([value, what]) => h("div", {}, h("dt", {}, value), h("dd", {}, what))))) : null,
    ),
  );
}

/**
 * "138.7 ms a step of CPU outside any op on rank 1, at most 0.1 ms on any other rank".
 * @param {Finding} finding
 * @param {Views} views
 * @param {string} owner
 */
function sum(finding, views, owner) {
  const affected = new Set(finding.ranks);
  const rows = perRank(views.budget_ms[owner]).map((value, i) => ({ rank: views.ranks[i], value }));
  const mine = rows.filter(({ rank }) => affected.has(rank)).map(({ value }) => value);
  const others = rows.filter(({ rank }) => !affected.has(rank)).map(({ value }) => value);
  const on = mine.length === 1 ? `rank ${finding.ranks[0]}` : others.length ? `${count(mine.length, "rank")}, mean` : `all ${count(mine.length, "rank")}, mean`;
  const rest = others.length ? `; at most ${ms(others.reduce((most, value) => Math.max(most, value)))} on any other rank` : "";
  return `${ms(mean(mine))} a step of ${ownerName(owner)} on ${on}${rest}.`;
}

/**
 * @param {Finding} finding
 * @param {Views} views
 * @param {import("../model.js").Grid} grid
 * @param {string} owner
 * @param {Chosen} chosen
 * @param {(rank: number, step: number) => void} select
 */
function cells(finding, views, grid, owner, chosen, select) {
  const affected = new Set(finding.ranks);
  const steps = new Set(finding.steps);
  const rows = largest(perRank(grid), (row) => affected.has(views.ranks[row]) && affected.size < views.ranks.length, RANKS);
  const columns = largest(views.steps.map(() => 0), (column) => steps.has(views.steps[column]), STEPS);
  const most = grid.reduce((most, row) => row.reduce((/** @type {number} */ longest, value) => Math.max(longest, value ?? 0), most), Number.MIN_VALUE);
  const cell = (/** @type {number} */ row, /** @type {number} */ column) => {
    const value = grid[row][column];
    if (value === null) return h("td", {}, "–");
    const [rank, step] = [views.ranks[row], views.steps[column]];
    const style = `--share: ${((30 * value) / most).toFixed(1)}%; --owner: var(--${owner})`;
    const button = h("button", { type: "button", style, "aria-pressed": String(String(rank) === chosen.rank && String(step) === chosen.step), "aria-label": `Rank ${rank}, step ${step}: ${ms(value)}`, click: press }, value.toFixed(1));
    function press() {
      for (const other of table.querySelectorAll("[aria-pressed]")) other.setAttribute("aria-pressed", String(other === button));
      select(rank, step);
    }
    return h("td", {}, button);
  };
  const parts = [
    views.ranks.length > rows.length && `the ${rows.length} ranks with most of it, of ${count(views.ranks.length, "rank")}`,
    views.steps.length > columns.length && `${columns.length} of ${count(views.steps.length, "step")}`,
  ].filter((part) => part !== false);
  const table = h(
    "table",
    { class: "cells" },
    h("thead", {}, h("tr", {}, h("td"), columns.map((column) => h("th", { scope: "col" }, `step ${views.steps[column]}`)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, h("th", { scope: "row", class: affected.has(views.ranks[row]) && affected.size < views.ranks.length ? "affected" : null }, `rank ${views.ranks[row]}`), columns.map((column) => cell(row, column))))),
  );
  return [
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": `${ownerName(owner)} per rank and step of finding ${finding.id}` },
      table,
    ),
    parts.length > 0 && h("p", { class: "note" }, `Shown: ${parts.join(", ")}.`),
  ];
}

/**
 * @param {Finding} finding
 * @param {Shown} shown
 * @returns {[string, string][]}
 */
function effects(finding, { diagnosis, views, place }) {
  const affected = new Set(finding.ranks);
  const others = diagnosis.ranks.filter((rank) => !affected.has(rank));
  /** @type {[string, string][]} */
  const found = [];
  if (views && others.length) {
    const waits = perRank(views.budget_ms.wait ?? []).filter((_, row) => !affected.has(views.ranks[row]));
    found.push([ms(mean(waits)), `straggler wait a step on ${others.length === 1 ? `rank ${others[0]}` : `the ${count(others.length, "other rank")}, mean`}`]);
  }
  const path = diagnosis.critical_path ?? [];
  if (path.length && others.length) {
    const step = stepToShow(path, place.step ? Number(place.step) : null);
    const on = byRank(step).filter(({ key }) => affected.has(key)).reduce((total, one) => total + one.ms, 0);
    found.push([`${ms(on)} of ${ms(lengthOf(step))}`, `of the critical path of step ${step.step} on ${finding.ranks.length === 1 ? `rank ${finding.ranks[0]}` : `these ${count(finding.ranks.length, "rank")}`}`]);
  }
  return found;
}
