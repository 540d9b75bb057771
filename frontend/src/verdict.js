// The first five seconds: is it healthy, what is the biggest loss, who causes it, what is a fix worth.

import { h, prose } from "./dom.js";
import { count, ms, percent, ranges } from "./format.js";
import { faults, lostMs } from "./model.js";

/** @typedef {import("./model.js").Report} Report */
/** @typedef {import("./model.js").Diagnosis} Diagnosis */

/** @param {Report} report */
export function verdict(report) {
  const { diagnosis } = report;
  return h(
    "header",
    { class: "verdict" },
    h("p", { class: "facts", title: diagnosis.name }, facts(report)),
    h("h1", { class: level(diagnosis) }, namingRanks(diagnosis.headline)),
    h("p", { class: "why" }, prose(why(diagnosis))),
    worth(report),
  );
}

/** @param {Report} report */
function facts({ diagnosis, views }) {
  const nodes = new Set(views?.nodes ?? []).size;
  const residual = diagnosis.clock.residual_us;
  const parts = [
    `${count(diagnosis.ranks.length, "rank")}${nodes > 1 ? ` on ${count(nodes, "node")}` : ""}`,
    `${diagnosis.steps.length === 1 ? "step" : "steps"} ${ranges(diagnosis.steps)}`,
    views?.device,
    residual !== null && `clocks agree to ${ms(residual / 1000)}`,
    views?.from_digests && "from digests, the traces are elsewhere",
  ];
  return [
    h("b", {}, diagnosis.name),
    h(
      "span",
      {},
      parts.flatMap((part) => (part ? [" · ", part] : [])),
    ),
  ];
}

/**
 * A severity; where nothing was found "healthy", or "info" where ranks are missing: no data is not healthy.
 * @param {Diagnosis} diagnosis
 */
const level = (diagnosis) => faults(diagnosis)[0]?.severity ?? (diagnosis.missing_ranks.length ? "info" : "healthy");

/**
 * A title with the culprit in the colour of the fault.
 * @param {string} title
 */
function namingRanks(title) {
  return title
    .split(/(\branks? \d+(?:(?:, | and |–|-)\d+)*)/i)
    .flatMap((part, i) => (i % 2 ? h("b", {}, part) : prose(part)));
}

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
 * @param {Report} report
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
