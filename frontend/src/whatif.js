// What the step would take if some of the findings were fixed. Each choice is asked of the server, which plays the
// steps again without them: savings do not add up, since what one fault hides shows once that fault is gone.

import { fetchProspect } from "./api.js";
import { card, h, prose } from "./dom.js";
import { ms, percent } from "./format.js";

/** @typedef {import("./model.js").Report} Report */
/** @typedef {import("./model.js").Diagnosis} Diagnosis */
/** @typedef {import("./model.js").Prospect} Prospect */

/** @param {Report} report */
export function whatIf({ diagnosis }) {
  const rules = fixable(diagnosis);
  if (!rules.size || !(diagnosis.step_ms > 0)) return null;
  const bar = h("div", { class: "kept" }, h("span", {}));
  const rest = h("div", { class: "saved" });
  const said = h("p", { class: "prospect", role: "status" }, "Asking…");
  const boxes = [...rules].map(([rule, { titles, alone_ms, serious }]) => {
    const box = /** @type {HTMLInputElement} */ (
      h("input", { type: "checkbox", value: rule, checked: serious, change: predict })
    );
    const saves = `${ms(alone_ms)} by itself`;
    return { box, row: h("label", {}, box, h("span", {}, h("b", {}, rule), " ", prose(titles)), h("span", {}, saves)) };
  });
  let asked = 0;

  async function predict() {
    const mine = ++asked;
    const chosen = boxes.filter(({ box }) => box.checked).map(({ box }) => box.value);
    try {
      const prospect = await fetchProspect(diagnosis.name, chosen);
      if (mine === asked) show(prospect);
    } catch (error) {
      if (mine === asked) said.textContent = error instanceof Error ? error.message : String(error);
    }
  }

  /** @param {Prospect} prospect */
  function show({ fixed, step_ms, without_ms, range_ms }) {
    const saved = step_ms - without_ms;
    bar.style.flex = `${without_ms} 1 0`;
    rest.style.flex = `${saved} 1 0`;
    bar.firstChild?.replaceWith(h("span", {}, ms(without_ms)));
    const range = range_ms[1] - range_ms[0] > 0.02 * step_ms ? `, ${ms(range_ms[0])} to ${ms(range_ms[1])} by step` : "";
    said.textContent = fixed.length
      ? `${ms(without_ms)} a step instead of ${ms(step_ms)}: ${percent(saved / step_ms)} less${range}.`
      : `${ms(step_ms)} a step, as it is. Choose what to fix.`;
  }

  predict();
  return card(
    "If you fixed these",
    h("div", { class: "whatif" }, h("div", { class: "track" }, bar, rest), said, ...boxes.map(({ row }) => row)),
  );
}

/**
 * The rules whose findings would give something back, costliest first.
 * @param {Diagnosis} diagnosis
 */
export function fixable(diagnosis) {
  /** @type {Map<string, {titles: string, alone_ms: number, serious: boolean}>} */
  const rules = new Map();
  for (const { rule, title, alone_ms, severity } of diagnosis.findings) {
    if (!(alone_ms > 0)) continue;
    const known = rules.get(rule);
    rules.set(rule, {
      titles: known ? `${known.titles} ${title}` : title,
      alone_ms: (known?.alone_ms ?? 0) + alone_ms,
      serious: (known?.serious ?? false) || severity !== "info",
    });
  }
  return rules;
}
