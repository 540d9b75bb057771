// The Diagnosis tab. TensorBoard imports this module into an empty page and calls render(); a report, which has the
// style sheet in itself, calls show().
//
//   app.js                     state, polling, which run shows
//   shell.js views.js views/   a report: its heading, its tabs, a module for each view
//   address.js                 run, view and the like as part of TensorBoard's address
//   stuck.js stuck_graph.js     a report of Flight Recorder dumps, and its picture of who waits for whom
//   runs/ states.js            the list on the left; what shows while there is no report
//   verdict/ findings/ selection.js          parts of the first two views; what is selected in all of them
//   tips.js glossary.js                      what terms mean
//   style.css style/                         the order of the style sheets, one for each view or kind of thing
//   lanes.js canvas.js heat.js table.js      pictures, and their numbers
//   compared.js                              what differs between two runs
//   calibration.js                           what a check of the cluster measured, in reports
//   trace.js perfetto.js                     from a finding into the trace: Perfetto and other tools
//   frame.js                                 what runs within Perfetto's sandbox, beside it
//   model.js format.js dom.js theme.js api.js reload.js    types, words, elements, light and dark, the server

import { start } from "./app.js";
import { repaint } from "./canvas.js";
import { h } from "./dom.js";
import { followTheme } from "./theme.js";

export async function render() {
  document.title = "Diagnosis";
  const style = h("link", { rel: "stylesheet", href: new URL("style.css", import.meta.url).href });
  // Pictures take their colours from the style sheets.
  await new Promise((done) => {
    style.addEventListener("load", done);
    style.addEventListener("error", done);
    document.head.append(style);
  });
  show();
}

export function show() {
  document.documentElement.lang = "en";
  followTheme(repaint);
  start(document.body);
}
