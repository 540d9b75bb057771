// The time of one owner by rank and step, to choose a cell of: as numbers where they are few, else as a picture of all.

import { h } from "../dom.js";
import { joinedRows, longest } from "../heat.js";
import { decimals, ms } from "../format.js";
import { ownerName } from "../model.js";
import { heatMap } from "../ranks/heat_map.js";

/** @typedef {import("../model.js").Finding} Finding */
/** @typedef {import("../model.js").Grid} Grid */
/** @typedef {import("../model.js").Views} Views */
/** @typedef {{rank: string, step: string}} Chosen "" for none */
/** @typedef {(rank: number, step: number) => void} Select */

/** So many rows and columns of numbers are read at a glance. */
const READ = 12;
/** Pixels that a picture of more takes, at most. */
const TALL = 168;

/**
 * @param {Finding} finding
 * @param {Views} views
 * @param {string} owner
 * @param {Chosen} chosen
 * @param {Select} select
 */
export function cells(finding, views, owner, chosen, select) {
  const few = views.ranks.length <= READ && views.steps.length <= READ;
  return few ? numbers(finding, views, owner, chosen, select) : strip(finding, views, owner, chosen, select);
}

/**
 * @param {Finding} finding
 * @param {Views} views
 */
function affectedIn({ ranks: some }, { ranks }) {
  return new Set(some.length < ranks.length ? some : []);
}

/**
 * @param {Finding} finding
 * @param {Views} views
 * @param {string} owner
 * @param {Chosen} chosen
 * @param {Select} select
 */
function numbers(finding, views, owner, chosen, select) {
  const grid = views.budget_ms[owner];
  const affected = affectedIn(finding, views);
  const most = longest(grid);
  const cell = (/** @type {number} */ row, /** @type {number} */ column) => {
    const value = grid[row][column];
    if (value === null) return h("td", {}, "–");
    const [rank, step] = [views.ranks[row], views.steps[column]];
    const style = `--share: ${decimals((30 * value) / most, 1)}%; --owner: var(--${owner})`;
    const button = h("button", { type: "button", style, "aria-pressed": String(String(rank) === chosen.rank && String(step) === chosen.step), "aria-label": `Rank ${rank}, step ${step}: ${ms(value)}`, click: press }, decimals(value, 1));
    function press() {
      for (const other of table.querySelectorAll("[aria-pressed]")) other.setAttribute("aria-pressed", String(other === button));
      select(rank, step);
    }
    return h("td", {}, button);
  };
  const table = h(
    "table",
    { class: "cells" },
    h("thead", {}, h("tr", {}, h("td"), views.steps.map((step) => h("th", { scope: "col" }, `step ${step}`)))),
    h("tbody", {}, views.ranks.map((rank, row) => h("tr", {}, h("th", { scope: "row", class: affected.has(rank) ? "affected" : null }, `rank ${rank}`), views.steps.map((_, column) => cell(row, column))))),
  );
  return [h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${ownerName(owner)} per rank and step of finding ${finding.id}` }, table)];
}

/**
 * All ranks and all steps; of more ranks than there are pixels, a row is the longest of several.
 * @param {Finding} finding
 * @param {Views} views
 * @param {string} owner
 * @param {Chosen} chosen
 * @param {Select} select
 */
function strip(finding, views, owner, chosen, select) {
  const grid = views.budget_ms[owner];
  const most = longest(joinedRows(grid, TALL).rows);
  const { ranks, steps } = views;
  const [row, column] = [ranks.indexOf(Number(chosen.rank || NaN)), steps.indexOf(Number(chosen.step || NaN))];
  const framed = steps.map((_, at) => (row >= 0 && at === column ? row : null));
  const { frame, readout } = heatMap({
    views,
    grid,
    affected: affectedIn(finding, views),
    shade: (value) => value / most,
    slowest: framed,
    go: (at, step) => select(ranks[at], steps[step]),
    does: "selects its windows below",
    owner,
    tall: TALL,
  });
  return [frame, readout];
}
