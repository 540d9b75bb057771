// What a check of the cluster measured, below the diagnosis of the job that ran on it. A report holds it, drawn.

import { folded, h } from "./dom.js";

/**
 * @param {string} run
 * @returns {Node[]} empty where nothing was measured, and in the tab
 */
export function calibrationOf(run) {
  const templates = /** @type {NodeListOf<HTMLTemplateElement>} */ (document.querySelectorAll("template[data-calibration-of]"));
  const own = [...templates].find(({ dataset }) => dataset.calibrationOf === run);
  if (!own) return [];
  const build = () => h("div", { class: "calibration" }, own.content.cloneNode(true));
  return [h("section", { class: "card" }, folded("Check of the cluster: what its ranks and links can do", build))];
}
