// Which ranks a timeline shows: a few opened, the others folded to one lane each. Pure.

import { mean } from "../model.js";

/** @typedef {import("../model.js").Views} Views */

/** The route `slice` gives no more ranks at once. */
export const MOST_OPENED = 16;
/** So many are folded below them at a time. */
export const FOLDED = 24;

/**
 * "0, 2-4, node1" as ranks that there are, in that order; null if it names none.
 * @param {string | undefined} text
 * @param {number[]} all
 * @param {string[]} [nodes] of each
 */
export function ranksOf(text, all, nodes = []) {
  const found = (text ?? "").split(",").flatMap((part) => {
    const word = part.trim().replace(/^ranks? /, "");
    if (!word) return [];
    const onNode = all.filter((_, i) => nodes[i] === word);
    if (onNode.length) return onNode;
    const [from, to] = word.split(/[-–]/).map(Number);
    return all.filter((rank) => rank >= from && rank <= (to ?? from));
  });
  const distinct = [...new Set(found)].slice(0, MOST_OPENED);
  return distinct.length ? distinct : null;
}

/**
 * The rank of median busy time among those that no finding names.
 * @param {Pick<Views, "ranks" | "busy_ms">} views
 * @param {Set<number>} affected
 * @returns {number | undefined}
 */
export function typical({ ranks, busy_ms }, affected) {
  const others = ranks.flatMap((rank, i) => (affected.has(rank) ? [] : [{ rank, busy: mean(busy_ms[i]) }]));
  others.sort((a, b) => a.busy - b.busy || a.rank - b.rank);
  return others[Math.floor((others.length - 1) / 2)]?.rank;
}

/**
 * Ranks to open, from above: those that matter, and a typical one.
 * @param {Pick<Views, "ranks" | "busy_ms">} views
 * @param {number[]} matter the most important first
 * @param {Set<number>} affected
 */
export function toOpen(views, matter, affected) {
  const one = typical(views, new Set([...affected, ...matter]));
  return [...new Set([...matter.slice(0, 2), ...(one === undefined ? [] : [one])])];
}

/**
 * The ranks that are folded, a page of them: the first page has those that matter, then those on the nodes of the opened
 * ones, then the others; each page in the order of the ranks.
 * @param {Pick<Views, "ranks" | "nodes">} views
 * @param {number[]} opened
 * @param {Set<number>} matter
 * @param {number} page from 0
 */
export function folded({ ranks, nodes }, opened, matter, page) {
  const near = new Set(opened.map((rank) => nodes[ranks.indexOf(rank)]));
  const weight = (/** @type {number} */ i) => (matter.has(ranks[i]) ? 0 : nodes[i] && near.has(nodes[i]) ? 1 : 2);
  const rest = ranks.flatMap((rank, i) => (opened.includes(rank) ? [] : [{ rank, weight: weight(i) }]));
  rest.sort((a, b) => a.weight - b.weight || a.rank - b.rank);
  const shown = rest.slice(page * FOLDED, (page + 1) * FOLDED).map(({ rank }) => rank);
  return { shown: shown.sort((a, b) => a - b), all: rest.length };
}
