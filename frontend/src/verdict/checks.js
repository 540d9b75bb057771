// Which checks passed, and which were not checked and why: "no data" is never "healthy".

import { folded, h, prose } from "../dom.js";
import { count } from "../format.js";
import { passed as passedChecks } from "../model.js";
import { tip } from "../tips.js";

/** More reasons are folded: they would be longer than all else of the verdict. */
const SHOWN = 4;

/** @param {import("../views.js").Shown} shown */
export function checks({ diagnosis, link }) {
  const { outcomes } = diagnosis;
  const ended = (/** @type {string} */ how) => outcomes.filter(({ status }) => status === how);
  const [passed, found, unchecked, failed] = ["clear", "finding", "not-applicable", "error"].map(ended);
  const possible = ended("opportunity");
  const all = link("quality");
  all.textContent = "All reasons";
  return h(
    "section",
    { class: "card checks" },
    h("div", { class: "head" }, h("h2", {}, `${passedChecks(outcomes).length} of ${count(outcomes.length, "check")} passed `, tip("check")), all),
    passed.length > 0 && h("ul", { class: "passed" }, passed.map(({ rule, reason }) => h("li", { title: reason }, rule))),
    found.length > 0 && h("p", { class: "note" }, h("b", {}, `${found.length} with findings: `), found.map(({ rule }) => rule).join(", ")),
    possible.length > 0 && h("p", { class: "note" }, h("b", {}, `${possible.length} with opportunities: `), possible.map(({ rule }) => rule).join(", ")),
    unseen(`${unchecked.length} not checked (${unchecked.length === 1 ? "lacks" : "lack"} data)`, unchecked),
    unseen(`${failed.length} failed`, failed),
  );
}

/**
 * @param {string} title
 * @param {{rule: string, reason: string}[]} some
 */
function unseen(title, some) {
  if (!some.length) return null;
  const list = () => h("ul", {}, some.map(({ rule, reason }) => h("li", {}, h("b", {}, rule), " ", prose(reason))));
  return h("div", { class: "unchecked" }, some.length > SHOWN ? folded(title, list) : [h("h3", {}, title), list()]);
}
