// The number of a finding, as `ddp-doctor slice --finding` takes it: the same in the bar, the list and the terminal.

import { h } from "../dom.js";
import { letterOf, numberOf } from "../model.js";

/** @param {number} number */
export const badge = (number) => h("span", { class: "badge", title: `Finding ${number}` }, String(number));

/**
 * The number of a finding, or the letter of an opportunity, which the list of opportunities has too.
 * @param {import("../model.js").Diagnosis} diagnosis
 * @param {string} id
 */
export function mark(diagnosis, id) {
  const number = numberOf(diagnosis, id);
  if (number > 0) return badge(number);
  const letter = letterOf(diagnosis, id);
  return h("span", { class: "letter", title: `Opportunity ${letter}` }, letter);
}
