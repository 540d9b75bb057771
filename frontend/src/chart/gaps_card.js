// How long the gaps of all ranks are, owner by owner: a card of the budget.

import { card, h } from "../dom.js";
import { count } from "../format.js";
import { hasGpu, ownerName } from "../model.js";
import { concentration, gapSum, histogram, rowsOf } from "./histogram.js";

/**
 * @param {import("../views.js").Shown} shown
 * @returns {{element: HTMLElement, show: (owner: string) => void} | null} null without gaps; to show those of another owner
 */
export function gapsCard({ diagnosis, views, place }) {
  const gaps = Object.entries(views?.gaps ?? {});
  if (!gaps.length) return null;
  const total = (/** @type {import("../../schema.js").GapLengths} */ { bins, shorter_ms }) => bins.reduce((sum, { sum_ms }) => sum + sum_ms, shorter_ms);
  gaps.sort(([, a], [, b]) => total(b) - total(a));
  const body = h("div");
  const show = (/** @type {string | undefined} */ wanted) => {
    const [owner, own] = gaps.find(([id]) => id === wanted) ?? gaps[0];
    choice.value = owner;
    const few = concentration(rowsOf(own));
    body.replaceChildren(
      h("p", { class: "note" }, `${gapSum(own)} of ${ownerName(owner)} in ${count(diagnosis.steps.length, "step")} of ${count(diagnosis.ranks.length, "rank")}${few && `: ${few}`}.`),
      histogram(own, owner),
    );
  };
  const choice = /** @type {HTMLSelectElement} */ (
    h("select", { change: () => show(choice.value) }, gaps.map(([id]) => h("option", { value: id }, ownerName(id))))
  );
  show(place.owner);
  const element = card(hasGpu(diagnosis) ? "GPU idle by length of the gaps" : "Idle time by length of the gaps", h("div", { class: "controls" }, h("label", {}, "Gaps of", choice)), h("div", { class: "gaps-card" }, body));
  return { element, show };
}
