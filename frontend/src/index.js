// The Diagnosis tab. TensorBoard imports this module into an empty page and calls render(); a report, which has the
// style sheet in itself, calls show().
//
//   app.js                     state, polling, which run shows
//   shell.js tabs.js           a report: its heading, the way between its views
//   views.js views/            which views there are, below which tabs; a module for each
//   address.js                 run, view and the like as part of TensorBoard's address
//   stuck.js stuck_graph.js     a report of Flight Recorder dumps, and its picture of who waits for whom
//   memory_run.js               a report of snapshots of memory without traces
//   runs/ states.js            the list on the left; what shows while there is no report
//   verdict/ findings/ selection.js          parts of the first two views; what is selected in all of them
//   tips.js glossary.js                      what terms mean
//   style/                                   a style sheet for each view or kind of thing
//   lanes.js canvas.js heat.js table.js      pictures, and their numbers
//   compared.js                              what differs between two runs
//   calibration.js                           what a check of the cluster measured, in reports
//   trace.js perfetto.js                     from a finding into the trace: Perfetto and other tools
//   frame.js                                 what runs within Perfetto's sandbox, beside it
//   notes.js                                 what people write about findings
//   model.js format.js dom.js theme.js viewport.js api.js reload.js    types, words, elements, light and dark, phones, the server

import { start } from "./app.js";
import { repaint } from "./canvas.js";
import { h } from "./dom.js";
import { followTheme } from "./theme.js";
import { setViewport } from "./viewport.js";

/** The style sheets in the order in which they count: of rules alike, later ones win. A report has them in one. */
const SHEETS = [
  "theme", "base", "runs", "report", "tabs", "plan", "whatif", "verdict", "costliest", "opportunities", "layers", "owners", "cards", "findings",
  "budget", "steps", "states", "widths", "tables", "charts", "memory", "dialogs", "compare", "stuck",
  "phone", "timeline", "ranks", "history", "calibration", "paper",
];

export async function render() {
  document.title = "Diagnosis";
  // Pictures take their colours from the style sheets.
  await Promise.all(SHEETS.map(loaded));
  show();
}

/** @param {string} name of a style sheet */
function loaded(name) {
  const style = h("link", { rel: "stylesheet", href: new URL(`style/${name}.css`, import.meta.url).href });
  return new Promise((done) => {
    style.addEventListener("load", done);
    style.addEventListener("error", done);
    document.head.append(style);
  });
}

export function show() {
  document.documentElement.lang = "en";
  setViewport();
  followTheme(repaint);
  start(document.body);
}
