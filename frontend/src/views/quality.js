// What the doctor could not see, and what it checked and found clear: "no data" is never "healthy".

import { askArriving } from "../api.js";
import { card, h, prose } from "../dom.js";
import { files } from "../files.js";
import { count } from "../format.js";

/** @typedef {import("../views.js").View} View */

/** @type {View} */
export const quality = {
  title: "Data quality",
  fragment: "quality",
  render(element, shown) {
    element.append(unseen(shown.diagnosis));
    return files(element, shown);
  },
  table: ({ diagnosis }) => ({
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
    ...outcomes
      .filter(({ status }) => status === "not-applicable")
      .map(({ rule, reason }) => h("li", {}, h("b", {}, `${rule} did not apply: `), prose(reason))),
  ];
  return card(
    "What the doctor could not see",
    items.length
      ? h("ul", { class: "plain" }, items)
      : h("p", { class: "note" }, "Nothing is missing: every rank was read whole, and every rule could be applied."),
    warnings.some(({ message }) => message.startsWith("Still arriving"))
      ? h("button", { type: "button", click: () => askArriving(name).catch(() => {}) }, "Count in what is there of them")
      : null,
    cleared(outcomes.filter(({ status }) => status === "clear")),
  );
}

/** @param {{rule: string, reason: string}[]} clear */
function cleared(clear) {
  if (!clear.length) return null;
  return h(
    "details",
    { class: "folded" },
    h("summary", {}, `Checked and clear: ${count(clear.length, "rule")}`),
    h(
      "ul",
      { class: "plain" },
      clear.map(({ rule, reason }) => h("li", {}, h("b", {}, `${rule}: `), prose(reason))),
    ),
  );
}
