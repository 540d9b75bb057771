// A report as the views that one moves between: the sentence above, the tabs, one view, and the numbers of its picture as a
// table.

import { linkTo } from "./address.js";
import { fetchMarkdown, isReport, reportAddress } from "./api.js";
import { copying, folded, h } from "./dom.js";
import { heading } from "./heading.js";
import { keysDialog } from "./keys.js";
import { printed } from "./print.js";
import { failed } from "./states.js";
import { chips, selectionOf } from "./selection.js";
import { numbers } from "./table.js";
import { noteSeen, questions, TAB_KEYS, tabRow } from "./tabs.js";
import { VIEWS } from "./views.js";

/** @typedef {import("./model.js").Report} Report */
/** @typedef {import("./address.js").Place} Place */
/** @typedef {import("./views.js").View} View */
/** @typedef {import("./views.js").Shown} Shown */

/** @type {[string, string][]} */
const KEYS = [
  ...TAB_KEYS,
  ["Tab, Enter", "next control; activate it"],
  ["?", "list of keys"],
];

/**
 * @param {Report & {live?: boolean, logdir?: string}} report
 * @param {(place: Place, how: {step: boolean}) => void} went called when something in here leads to another place
 */
export function shell(report, went) {
  /** @type {Place} */
  let place = {};
  let leave = () => {};
  /** Counts what was shown so far. */
  let showing = 0;
  const panel = h("div", { class: "panel", id: "panel", tabindex: -1 });
  const skip = h("button", { type: "button", class: "skip", click: () => panel.focus() }, "Skip to the view");
  const tabs = tabRow(report, link, (view) => go({ run: report.diagnosis.name, view, ...selectionOf(place) }));
  const selected = h("div", { class: "chips", role: "group", "aria-label": "Selection" });
  const share = h(
    "div",
    { class: "ways-out" },
    ...(isReport ? [] : sharing()),
    h("button", { type: "button", click: () => paper.print() }, "Print"),
  );
  const paper = printed(report, link);
  const element = h("div", { class: "report" }, skip, heading(report, [selected, share]), tabs.elements, panel);
  document.addEventListener("keydown", pressed);

  /** What the doctor says, for somebody else: as a link, as text for a pull request or a chat, as one file. */
  function sharing() {
    const { name } = report.diagnosis;
    const save = () => h("a", { href: reportAddress(name, "html"), download: `${name.replace(/[^\w.-]+/g, "_")}.html` }).click();
    return [
      copying("Copy link", () => linkTo({ run: name, ...place }), "Copy it from the address bar"),
      copying("Copy Markdown", () => fetchMarkdown(name), "Use ddp-doctor diagnose --markdown"),
      h("button", { type: "button", click: save }, "Save report"),
    ];
  }

  /** @param {Place} next */
  function show(next) {
    place = next;
    leave();
    const view = viewOf(place);
    tabs.show(view);
    drawChips();
    const body = h("div", { class: `view ${view.fragment}` });
    const mine = ++showing;
    /** @type {Shown} */
    const shown = {
      ...report,
      get place() {
        return place;
      },
      keep(changes) {
        if (mine !== showing) return; // the view was left, and what it says comes late
        place = { run: report.diagnosis.name, ...place, ...changes };
        went(place, { step: false });
        drawChips();
      },
      link,
    };
    panel.replaceChildren(...unknown(place), body);
    leave = () => {};
    try {
      leave = view.render(body, shown) ?? leave;
      const table = view.table(shown);
      if (table) panel.append(folded("The same numbers as a table", () => numbers(view, table())));
    } catch (error) {
      // One view never hides the others.
      console.warn(error);
      body.replaceChildren(failed(`${view.title} could not be drawn.`, "The other views still work. Please report this error."));
    }
    if (view === VIEWS[0]) panel.append(...tabs.introduction());
    else noteSeen();
  }

  function drawChips() {
    const change = (/** @type {Place} */ changes) => go({ run: report.diagnosis.name, ...place, ...changes });
    selected.replaceChildren(...chips(report, place, change, link));
  }

  /** @param {KeyboardEvent} event */
  function pressed(event) {
    const typing = event.target instanceof Element && event.target.closest("input, select, textarea, dialog");
    if ((event.ctrlKey || event.metaKey) && event.key === "p") {
      event.preventDefault();
      paper.print();
      return;
    }
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || typing) return;
    if (event.key === "?" && !viewOf(place).keys?.some(([key]) => key === "?")) help();
    else if (!tabs.pressed(event.key, viewOf(place))) return;
    event.preventDefault();
  }

  function help() {
    const { title, keys = [] } = viewOf(place);
    const dialog = keysDialog(`Keys of ${title}`, [...keys, ...KEYS], questions());
    dialog.addEventListener("close", () => dialog.remove());
    element.append(dialog);
    dialog.showModal();
  }

  function close() {
    document.removeEventListener("keydown", pressed);
    paper.leave();
    showing += 1;
    leave();
  }

  /** @type {Shown["link"]} */
  function link(view, changes = {}) {
    // What is selected when it is followed, not when it was made.
    const there = () => ({ run: report.diagnosis.name, view, ...selectionOf(place), ...changes });
    const clicked = (/** @type {MouseEvent} */ event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return; // a tab or window of its own
      event.preventDefault();
      go(there());
    };
    const anchor = /** @type {HTMLAnchorElement} */ (h("a", { href: linkTo(there()), target: "_top", click: clicked }));
    anchor.addEventListener("pointerdown", () => (anchor.href = linkTo(there())));
    return anchor;
  }

  /** @param {Place} there */
  function go(there) {
    show(there);
    went(there, { step: true });
  }

  return { element, show, close };
}

/**
 * The view that a place names; the first one where it names none that there is.
 * @param {Place} place
 * @returns {View}
 */
const viewOf = ({ view }) => VIEWS.find(({ fragment }) => fragment === view) ?? VIEWS[0];

/**
 * What is said where a link names a view that there is not.
 * @param {Place} place
 */
const unknown = ({ view }) => (view && !VIEWS.some(({ fragment }) => fragment === view) ? [h("p", { class: "note", role: "status" }, `This link names no view: “${view}”. The verdict instead:`)] : []);
