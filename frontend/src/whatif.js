// What the step would take if some of the findings were fixed. Each choice is asked of the server, which plays the
// steps again without them: savings do not add up, since what one fault hides shows once that fault is gone. The
// address keeps the choice.

import { fetchProspect } from "./api.js";
import { card, h } from "./dom.js";
import { ms, percent } from "./format.js";

/** @typedef {import("./model.js").Diagnosis} Diagnosis */
/** @typedef {import("./model.js").Finding} Finding */
/** @typedef {import("./model.js").Prospect} Prospect */

/**
 * A bar of the predicted step, and a box for each finding that can be fixed. Findings of one rule are fixed together.
 * @param {import("./views.js").Shown} shown
 */
export function prediction({ diagnosis, place, keep }) {
  const rules = fixable(diagnosis);
  if (!rules.size || !(diagnosis.step_ms > 0)) return null;
  const bar = h("div", { class: "kept" }, h("span", {}));
  const rest = h("div", { class: "saved" }, h("span", {}));
  const said = h("p", { class: "prospect", role: "status" }, "Asking…");
  const kept = place.fixed?.split(",");
  const chosen = new Set([...rules].filter(([rule, { serious }]) => (kept ? kept.includes(rule) : serious)).map(([rule]) => rule));
  /** @type {Map<string, HTMLInputElement[]>} */
  const boxes = new Map([...rules.keys()].map((rule) => [rule, []]));
  let asked = 0;

  /** @param {Finding} finding */
  function box({ rule, title, alone_ms }) {
    const siblings = boxes.get(rule);
    if (!siblings || !(alone_ms > 0)) return null;
    const input = /** @type {HTMLInputElement} */ (
      h("input", {
        type: "checkbox",
        value: rule,
        checked: chosen.has(rule),
        title: `If fixed: ${ms(alone_ms)} less by itself`,
        "aria-label": `If fixed: ${title}`,
        change: () => choose(rule, input.checked),
      })
    );
    siblings.push(input);
    return input;
  }

  /**
   * @param {string} rule
   * @param {boolean} fixed
   */
  function choose(rule, fixed) {
    if (fixed) chosen.add(rule);
    else chosen.delete(rule);
    for (const input of boxes.get(rule) ?? []) input.checked = fixed;
    keep({ fixed: [...chosen].join(",") || "none" });
    predict();
  }

  async function predict() {
    const mine = ++asked;
    try {
      const prospect = await fetchProspect(diagnosis.name, [...chosen]);
      if (mine === asked) show(prospect);
    } catch (error) {
      if (mine === asked)
        said.textContent = `No prediction: ${error instanceof Error ? error.message : String(error)}`;
    }
  }

  /** @param {Prospect} prospect */
  function show({ fixed, step_ms, without_ms, range_ms }) {
    const saved = step_ms - without_ms;
    bar.style.flex = `${without_ms} 1 0`;
    rest.style.flex = `${saved} 1 0`;
    bar.firstChild?.replaceWith(h("span", {}, ms(without_ms), h("i", {}, fixed.length ? " if fixed" : " per step")));
    rest.firstChild?.replaceWith(h("span", {}, saved > 0 ? `−${ms(saved)}` : ""));
    const range = range_ms[1] - range_ms[0] > 0.02 * step_ms ? `, ${ms(range_ms[0])} to ${ms(range_ms[1])} by step` : "";
    said.textContent = fixed.length
      ? `${ms(without_ms)} a step instead of ${ms(step_ms)}: ${percent(saved / step_ms)} less${range}.`
      : `${ms(step_ms)} a step, as it is. Choose what to fix.`;
  }

  predict();
  const element = card("If you fixed what is ticked", h("div", { class: "whatif" }, h("div", { class: "track" }, bar, rest), said));
  return { element, box };
}

/**
 * The rules whose findings would give something back, costliest first.
 * @param {Diagnosis} diagnosis
 */
export function fixable(diagnosis) {
  /** @type {Map<string, {alone_ms: number, serious: boolean}>} */
  const rules = new Map();
  for (const { rule, alone_ms, severity } of diagnosis.findings) {
    if (!(alone_ms > 0)) continue;
    const known = rules.get(rule);
    rules.set(rule, {
      alone_ms: (known?.alone_ms ?? 0) + alone_ms,
      serious: (known?.serious ?? false) || severity !== "info",
    });
  }
  return rules;
}
