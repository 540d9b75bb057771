// What is selected, the same in all views: a finding, a rank, a step and an owner, as chips above them and in the address.

import { isReport } from "./api.js";
import { h } from "./dom.js";
import { numberOf, ownerName } from "./model.js";
import { ofStep } from "./timeline/place.js";

/** @typedef {import("./address.js").Place} Place */
/** @typedef {import("./model.js").Report} Report */

const SELECTED = ["finding", "rank", "step", "owner"];

/**
 * The part of a place that another view keeps.
 * @param {Place} place
 * @returns {Place}
 */
export const selectionOf = (place) => Object.fromEntries(SELECTED.flatMap((key) => (place[key] ? [[key, place[key]]] : [])));

/**
 * @param {Report} report
 * @param {Place} place
 * @param {(changes: Place) => void} change
 * @param {(view: string, changes?: Place) => HTMLAnchorElement} link
 */
export function chips(report, place, change, link) {
  const selected = Object.entries(selectionOf(place)).map(([key, value]) => ({ key, name: nameOf(report, key, value) }));
  if (!selected.length) return [];
  return [
    ...selected.map(({ key, name }) =>
      h("button", { type: "button", class: "chip", "aria-label": `${name}: remove from the selection`, click: () => change({ [key]: "" }) }, name),
    ),
    inTimeline(report, place, link),
    selected.length > 1 ? h("button", { type: "button", class: "clear", click: () => change(Object.fromEntries(SELECTED.map((key) => [key, ""]))) }, "Clear") : null,
  ].filter((part) => part !== null);
}

/**
 * @param {Report} report
 * @param {string} key
 * @param {string} value
 */
function nameOf({ diagnosis }, key, value) {
  if (key === "owner") return ownerName(value);
  const number = key === "finding" ? numberOf(diagnosis, value) : 0;
  return `${key} ${number > 0 ? number : value}`;
}

/**
 * A link to the selected step of the selected rank in the timeline; null where that is not one place there.
 * @param {Report} report
 * @param {Place} place
 * @param {(view: string, changes?: Place) => HTMLAnchorElement} link
 */
function inTimeline({ views }, { rank, step, view }, link) {
  if (!views || isReport || !rank || !step || view === "timeline") return null;
  const place = ofStep(views, Number(rank), Number(step));
  if (!place) return null;
  const anchor = link("timeline", place);
  anchor.textContent = "Open in timeline";
  return anchor;
}
