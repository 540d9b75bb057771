// A view whose numbers are asked for when it is opened.

import { fetchDetail } from "./api.js";
import { h } from "./dom.js";

/** @typedef {"operators" | "compute" | "layers" | "communication" | "memory" | "ranks" | "quality" | "history"} Of */

/** What was asked for ahead, by run and view: a print does not wait. @type {Map<string, any>} */
const ahead = new Map();
const key = (/** @type {string} */ run, /** @type {Of} */ of) => `${of} ${run}`;

/**
 * Have the numbers of some views at hand until they are forgotten; those that cannot be had are left out.
 * @param {string} run
 * @param {Of[]} views
 */
export async function askAhead(run, views) {
  await Promise.all(views.map((of) => fetchDetail(run, of).then((numbers) => ahead.set(key(run, of), numbers), () => {})));
}

export const isAtHand = (/** @type {string} */ run, /** @type {Of} */ of) => ahead.has(key(run, of));

export const forget = () => ahead.clear();

/**
 * @param {HTMLElement} element
 * @param {string} run
 * @param {Of} of
 * @param {(numbers: any) => (Node | null)[]} build
 * @returns {() => void} to be called when the view is left
 */
export function detail(element, run, of, build) {
  if (isAtHand(run, of)) {
    element.append(...build(ahead.get(key(run, of))).filter((part) => part !== null));
    return () => {};
  }
  let left = false;
  const waiting = h("p", { class: "note", role: "status" }, "Loading…");
  element.append(waiting);
  fetchDetail(run, of).then(
    (numbers) => {
      if (!left) waiting.replaceWith(...build(numbers).filter((part) => part !== null));
    },
    (error) => {
      waiting.textContent = error instanceof Error ? error.message : String(error);
    },
  );
  return () => {
    left = true;
  };
}
