// Communication: size against time, groups compared with groups like them, ranks with ranks, and nodes with each other.

import { chart } from "../communication/chart.js";
import { pairsCard } from "../communication/pairs_card.js";
import { byNode, calls, summary, unknownLinks } from "../communication/tables.js";
import { detail } from "../detail.js";
import { card, h, nearby } from "../dom.js";

/** @typedef {import("../views.js").Shown} Shown */
/** @typedef {import("../communication/family.js").Family} Family */
/** @typedef {import("../communication/family.js").Node} Node */

/** From so many kinds and groups on, what stands far below is not built before somebody comes there. */
const MANY = 128;

/** @type {import("../views.js").View} */
export const communication = {
  title: "Communication",
  fragment: "communication",
  lacks: ({ diagnosis }) => (diagnosis.ranks.length > 1 ? "" : "Collectives are compared between ranks, and there is the trace of one."),
  render: (element, shown) => detail(element, shown.diagnosis.name, "communication", (told) => drawn(told, shown)),
  table: () => null, // it has some of its own
  keys: [["Arrow keys, Enter", "move over the collectives of the chart, longest first; show one in the timeline"]],
};

/**
 * @param {{families: Family[], nodes: Node[], sent: import("../communication/pairs.js").Sent[]}} told
 * @param {Shown} shown
 */
function drawn({ families, nodes, sent }, shown) {
  const pairs = pairsCard(families, sent, shown);
  if (!families.length) {
    return [card("Time by size", h("p", { class: "note" }, "No collective was matched between ranks, so there is nothing to measure.")), pairs];
  }
  const points = chart(families, shown);
  return [
    points && card("Time by size", ...points),
    card("By kind and group", summary(families, shown), unknownLinks(families)),
    pairs,
    nodes.length ? card("By node", ...byNode(nodes, shown)) : null,
    card("Each collective", shown.place.step ? h("p", { class: "note" }, `Of the selected step ${shown.place.step}.`) : null, nearby(() => [calls(families, shown)], shown.whole || families.length <= MANY)),
  ];
}
