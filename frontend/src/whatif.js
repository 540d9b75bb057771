// What the step would take if some of the findings were fixed. Each choice is asked of the server, which plays the
// steps again without them: savings do not add up, since what one fault hides shows once that fault is gone. The
// address keeps the choice.

import { fetchProspect } from "./api.js";
import { card, h } from "./dom.js";
import { interval, ms, percent } from "./format.js";

/** @typedef {import("./model.js").Diagnosis} Diagnosis */
/** @typedef {import("./model.js").Finding} Finding */
/** @typedef {import("./model.js").Prospect} Prospect */

/**
 * A bar of the predicted step, and a box for each finding that can be fixed.
 * @param {import("./views.js").Shown} shown
 */
export function prediction({ diagnosis, place, keep }) {
  const fixable = [...diagnosis.findings, ...diagnosis.opportunities].filter(({ cost_ms, alone_ms }) => cost_ms > 0 || alone_ms > 0);
  if (!fixable.length || !(diagnosis.step_ms > 0)) return null;
  const bar = h("div", { class: "kept", "data-quantity": "step with the fixes" }, h("span", {}));
  const rest = h("div", { class: "saved", "data-quantity": "cost" }, h("span", {}));
  const said = h("p", { class: "prospect", role: "status" }, "Predicting…");
  const kept = place.fixed?.split(",");
  const isChosen = (/** @type {Finding} */ { id, rule, severity }) =>
    kept ? kept.includes(id) || kept.includes(rule) : severity !== "info" && severity !== "opportunity";
  const chosen = new Set(fixable.filter(isChosen).map(({ id }) => id));
  let asked = 0;

  /** @param {Finding} finding */
  function box(finding) {
    if (!fixable.includes(finding)) return null;
    const { id, title, alone_ms } = finding;
    const input = /** @type {HTMLInputElement} */ (
      h("input", {
        type: "checkbox",
        value: id,
        checked: chosen.has(id),
        title: `Saves ${ms(alone_ms)} a step if fixed alone`,
        "aria-label": `Fixed: ${title}`,
        change: () => choose(id, input.checked),
      })
    );
    return input;
  }

  /**
   * @param {string} id
   * @param {boolean} fixed
   */
  function choose(id, fixed) {
    if (fixed) chosen.add(id);
    else chosen.delete(id);
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
  function show({ fixed, step_ms, without_ms, range_ms: [least, most] }) {
    const saved = step_ms - without_ms;
    bar.style.flex = `${without_ms} 1 0`;
    rest.style.flex = `${saved} 1 0`;
    bar.firstChild?.replaceWith(h("span", {}, ms(without_ms), h("i", {}, fixed.length ? " with the fixes" : " per step")));
    rest.firstChild?.replaceWith(h("span", {}, saved > 0 ? `−${ms(saved)}` : ""));
    said.textContent = fixed.length
      ? `${ms(without_ms)} a step instead of ${ms(step_ms)}: ${percent(saved / step_ms)} less (${interval(least, most)}).`
      : `${ms(step_ms)} a step, nothing ticked. Tick the findings to fix.`;
  }

  predict();
  const element = card("What if: step time with the ticked findings fixed", h("div", { class: "whatif" }, h("div", { class: "track" }, bar, rest), said));
  return { element, box };
}
