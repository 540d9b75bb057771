// The views of a report, below the tabs that they are parts of. Each is a module of its own under views/; `shell.js` shows
// one. The address names the view alone, so that a view may move to another tab and no link changes.

import { budget } from "./views/budget.js";
import { communication } from "./views/communication.js";
import { compare } from "./views/compare.js";
import { findings } from "./views/findings.js";
import { history } from "./views/history.js";
import { layers } from "./views/layers.js";
import { memory } from "./views/memory.js";
import { mesh } from "./views/mesh.js";
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
 * @property {string} [logdir] the directory that TensorBoard shows; "" where there are several, or none in a report
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
 * @property {Map<string, string>} [meanings] of heads that mean something else in this job than in most
 */

/**
 * @typedef {object} View
 * @property {string} title of its tab, or of its button where that tab has several views
 * @property {string} fragment its name in the address
 * @property {(report: Pick<import("./model.js").Report, "diagnosis" | "views">) => string} [lacks] why this job has nothing to show here, "" if it has
 * @property {(element: HTMLElement, shown: Shown) => void | (() => void)} render into an empty element; what it returns
 *   is called when the view is left
 * @property {(shown: Shown) => (() => Table) | null} table makes the numbers of its picture; null where there are none
 * @property {[string, string][]} [keys] the keys it listens to, and what they do
 */

/**
 * A question, and the views that answer it. There are eight at most; where one has several views, these are a row of buttons.
 * @typedef {object} Tab
 * @property {string} title
 * @property {string} question
 * @property {View[]} views the first one opens with the tab
 */

/** @type {Tab[]} */
export const TABS = [
  { title: "Verdict", question: "What is wrong, what does it cost, what should I do?", views: [verdict, findings, quality] },
  { title: "Ranks & steps", question: "Which rank and which step lose the time?", views: [budget, steps, ranks, mesh] },
  { title: "Timeline", question: "What happened, event by event, and what did it wait for?", views: [timeline] },
  { title: "Compute", question: "Are the kernels as fast as the GPU allows, and where in the model are they?", views: [operators, layers] },
  { title: "Communication", question: "Which collectives are exposed, and is a link slow?", views: [communication] },
  { title: "Memory", question: "What fills the memory, and would a larger batch fit?", views: [memory] },
  { title: "Plan", question: "What would more GPUs, other buckets or a faster network bring?", views: [plan] },
  { title: "History", question: "Is it slower than before, and since when?", views: [compare, history] },
];

export const VIEWS = TABS.flatMap(({ views }) => views);

/** @param {View} view */
export const tabOf = (view) => /** @type {Tab} */ (TABS.find(({ views }) => views.includes(view)));
