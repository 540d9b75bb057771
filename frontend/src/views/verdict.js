// The first five seconds: is it healthy, what is the biggest loss, who causes it, what is a fix worth.

import { h, prose } from "../dom.js";
import { count, ms, percent } from "../format.js";
import { level } from "../heading.js";
import { faults, lostMs } from "../model.js";

/** @typedef {import("../model.js").Diagnosis} Diagnosis */
/** @typedef {import("../views.js").View} View */
/** @typedef {import("../views.js").Shown} Shown */

/** @type {View} */
export const verdict = {
  title: "Verdict",
  fragment: "verdict",
  render(element, shown) {
    const parts = [h("p", { class: "why" }, prose(why(shown.diagnosis))), worth(shown)];
    element.append(...parts.filter((part) => part !== null));
  },
  table: () => null,
};

/** @param {Diagnosis} diagnosis */
function why(diagnosis) {
  const [worst] = faults(diagnosis);
  if (worst) return worst.why;
  const clear = diagnosis.outcomes.filter(({ status }) => status === "clear" || status === "finding").length;
  const blind = diagnosis.outcomes.length - clear;
  return `${count(clear, "rule")} looked${blind ? `, ${blind} could not: the reasons stand below` : " and found nothing worth a fix"}.`;
}

/**
 * The step as it is, cut into what stays after the fixes and what each fix gives back.
 * @param {Shown} shown
 */
function worth({ diagnosis, views }) {
  const lost = lostMs(diagnosis);
  const step = diagnosis.step_ms;
  const left = step - lost;
  if (!(step > 0)) return null;
  const part = (
    /** @type {string} */ kind,
    /** @type {number} */ value,
    /** @type {string} */ rest,
    title = `${ms(value)} ${rest}`,
  ) => h("div", { class: kind, style: `flex: ${value} 1 0`, title }, h("span", {}, ms(value), h("i", {}, ` ${rest}`)));
  const gpus = `${views?.device ? "GPU" : "rank"}-hours`;
  const given = (diagnosis.world_size * 24 * lost) / step;
  return h(
    "div",
    { class: "worth" },
    h(
      "div",
      { class: "track" },
      part(level(diagnosis) === "info" ? "kept info" : "kept", left, lost ? "after the fixes" : "per step"),
      faults(diagnosis).map(({ severity, cost_ms, title }) =>
        part(severity, cost_ms, "lost", `${ms(cost_ms)} lost: ${title}`),
      ),
    ),
    h(
      "div",
      { class: "scale" },
      h("span", {}, "0"),
      lost > 0 &&
        h(
          "span",
          {},
          `Predicted with the fixes: ${percent(lost / step)} less time a step, `,
          left > 0 ? `${(step / left).toFixed(step / left < 1.95 ? 2 : 1)}× as fast, ` : "",
          `${Math.round(given).toLocaleString("en")} ${gpus} a day given back`,
        ),
      h("span", {}, lost ? `${ms(step)} now` : ms(step)),
    ),
  );
}
