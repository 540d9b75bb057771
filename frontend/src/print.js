// The run that is open as a document: what is said of it, its findings with their pictures, and an appendix. It is made when
// a print begins, whatever view is open, and is gone when that ends.

import { isReport } from "./api.js";
import { paint, repaint } from "./canvas.js";
import { askAhead, forget, isAtHand } from "./detail.js";
import { h } from "./dom.js";
import { heading } from "./heading.js";
import { budget } from "./views/budget.js";
import { communication } from "./views/communication.js";
import { findings } from "./views/findings.js";
import { quality } from "./views/quality.js";
import { steps } from "./views/steps.js";
import { verdict } from "./views/verdict.js";

/** @typedef {import("./views.js").View} View */

/**
 * Follow the browser's prints.
 * @param {import("./model.js").Report} report
 * @param {import("./views.js").Shown["link"]} link
 * @returns {{print: () => Promise<void>, leave: () => void}} to print with the numbers that only the server has; to be
 *   called when the report is left
 */
export function printed(report, link) {
  /** @type {HTMLElement | null} */
  let page = null;
  let wasDark = false;
  const root = document.documentElement;

  function begin() {
    end();
    wasDark = root.classList.contains("dark");
    root.classList.remove("dark");
    page = documentOf(report, link);
    document.body.append(page);
    page.querySelectorAll("canvas").forEach(paint);
  }
  function end() {
    if (!page) return;
    page.remove();
    page = null;
    forget();
    root.classList.toggle("dark", wasDark);
    repaint();
  }
  addEventListener("beforeprint", begin);
  addEventListener("afterprint", end);
  return {
    async print() {
      await askAhead(report.diagnosis.name, ["communication", "quality"]);
      print();
    },
    leave() {
      end();
      removeEventListener("beforeprint", begin);
      removeEventListener("afterprint", end);
    },
  };
}

/**
 * @param {import("./model.js").Report} report
 * @param {import("./views.js").Shown["link"]} link
 */
function documentOf(report, link) {
  const shown = { ...report, place: {}, keep() {}, link, whole: true };
  const part = (/** @type {View} */ view, /** @type {string} */ title) => {
    const body = h("div", { class: `view ${view.fragment}` });
    view.render(body, shown);
    return h("section", { class: "part-of-print" }, title ? h("h2", {}, title) : null, body);
  };
  // A print that the browser began waits for no server; a report is its own.
  const appendix = [budget, steps, ...(isReport || isAtHand(report.diagnosis.name, "communication") ? [communication] : []), quality];
  return h(
    "div",
    { class: "printed report" },
    heading(report, []),
    part(verdict, ""),
    report.diagnosis.findings.length ? part(findings, "Findings") : null,
    h("h1", {}, "Appendix"),
    appendix.map((view) => part(view, view.title)),
  );
}
