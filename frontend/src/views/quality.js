// What was not checked for lack of data, and which checks passed: "no data" is never "healthy".

import { askArriving } from "../api.js";
import { card, h, prose } from "../dom.js";
import { files } from "../files.js";
import { count } from "../format.js";
import { passed } from "../model.js";

/** @typedef {import("../views.js").View} View */

/** @type {View} */
export const quality = {
  title: "Data quality",
  fragment: "quality",
  render(element, shown) {
    element.append(unseen(shown.diagnosis));
    return files(element, shown);
  },
  table: ({ diagnosis }) => () => ({
    heads: ["rule", "result", "reason"],
    rows: diagnosis.outcomes.map(({ rule, status, reason }) => [rule, status, reason]),
  }),
};

/** @param {import("../model.js").Diagnosis} diagnosis */
function unseen(diagnosis) {
  const { name, outcomes, warnings } = diagnosis;
  const items = [
    ...warnings.map(({ file, message }) =>
      h(
        "li",
        { class: "warning" },
        file === name ? null : h("b", { class: "file", title: file }, file.split("/").pop() ?? file),
        prose(message),
      ),
    ),
    ...outcomes
      .filter(({ status }) => status === "error")
      .map(({ rule, reason }) => h("li", {}, h("b", {}, `${rule} failed: `), prose(reason))),
    ...alike(outcomes.filter(({ status }) => status === "not-applicable")).map(([reason, rules]) =>
      h("li", {}, h("b", {}, `${rules.join(", ")} not checked (lacks data): `), prose(reason)),
    ),
  ];
  return card(
    "Warnings and checks without data",
    items.length
      ? h("ul", { class: "plain" }, items)
      : h("p", { class: "note" }, "Every rank was read completely, and every check had its data."),
    warnings.some(({ kind }) => kind === "arriving")
      ? h("button", { type: "button", click: () => askArriving(name).catch(() => {}) }, "Include the files as they are now")
      : null,
    cleared(passed(outcomes), outcomes.length),
  );
}

/**
 * The rules of each reason, in the order in which one is first given.
 * @param {{rule: string, reason: string}[]} outcomes
 * @returns {[string, string[]][]}
 */
function alike(outcomes) {
  /** @type {Map<string, string[]>} */
  const rules = new Map();
  for (const { rule, reason } of outcomes) rules.set(reason, [...(rules.get(reason) ?? []), rule]);
  return [...rules];
}

/**
 * @param {{rule: string, reason: string}[]} clear those that found no fault
 * @param {number} all checks
 */
function cleared(clear, all) {
  if (!clear.length) return null;
  return h(
    "details",
    { class: "folded" },
    h("summary", {}, `${clear.length} of ${count(all, "check")} passed`),
    h(
      "ul",
      { class: "plain" },
      clear.map(({ rule, reason }) => h("li", {}, h("b", {}, `${rule}: `), prose(reason))),
    ),
  );
}
