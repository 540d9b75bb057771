// The views of a report, in the order of their tabs. Each is a module of its own under views/; `shell.js` shows one.

import { budget } from "./views/budget.js";
import { communication } from "./views/communication.js";
import { compare } from "./views/compare.js";
import { findings } from "./views/findings.js";
import { memory } from "./views/memory.js";
import { operators } from "./views/operators.js";
import { plan } from "./views/plan.js";
import { quality } from "./views/quality.js";
import { ranks } from "./views/ranks.js";
import { steps } from "./views/steps.js";
import { timeline } from "./views/timeline.js";
import { verdict } from "./views/verdict.js";

/**
 * What a view is given to draw: the report, the place that the address names, and the ways to another one.
 * @typedef {object} Shown
 * @property {import("./model.js").Diagnosis} diagnosis
 * @property {import("./model.js").Views | null} views
 * @property {boolean} [live] whether files of the run are still being written
 * @property {boolean} [whole] whether all findings are open, as on paper
 * @property {import("./address.js").Place} place
 * @property {(changes: import("./address.js").Place) => void} keep notes in the address what this view now shows
 * @property {(view: string, changes?: import("./address.js").Place) => HTMLAnchorElement} link to another view, empty
 */

/**
 * Numbers behind a picture. A head carries the unit; cells of numbers are printed alike, and exported as they are.
 * @typedef {object} Table
 * @property {string[]} heads
 * @property {(string | number | null)[][]} rows the first cell of each names the row
 */

/**
 * @typedef {object} View
 * @property {string} title of its tab
 * @property {string} fragment its name in the address
 * @property {(element: HTMLElement, shown: Shown) => void | (() => void)} render into an empty element; what it returns
 *   is called when the view is left
 * @property {(shown: Shown) => (() => Table) | null} table makes the numbers of its picture; null where there are none
 * @property {[string, string][]} [keys] the keys it listens to, and what they do
 */

/** @type {View[]} */
export const VIEWS = [
  verdict,
  findings,
  budget,
  steps,
  timeline,
  communication,
  memory,
  operators,
  ranks,
  plan,
  quality,
  compare,
];
