// The way between views: a row of tabs, a question each, and below it the views of the open one. Badges count the findings
// that have evidence there; what the job cannot fill is grey, with the reason.

import { h } from "./dom.js";
import { count } from "./format.js";
import { faults, ownerOf } from "./model.js";
import { TABS, tabOf } from "./views.js";

/** @typedef {import("./model.js").Report} Report */
/** @typedef {import("./model.js").Finding} Finding */
/** @typedef {import("./views.js").Tab} Tab */
/** @typedef {import("./views.js").View} View */

/** Findings that a badge names. */
const MOST_NAMES = 5;
/** Kept by the browser once somebody has opened another tab. */
const SEEN = "ddp_doctor.tabs_seen";

/** The view that shows the time of an owner best. */
const VIEW_OF_OWNER = /** @type {Record<string, string>} */ ({ wait: "communication", transfer: "communication", compute: "operators", copy: "operators", alloc: "memory" });

/**
 * @param {Report} report
 * @param {(view: string) => HTMLAnchorElement} link to a view, empty
 * @param {(view: string) => void} go
 */
export function tabRow(report, link, go) {
  const row = h("nav", { class: "tabs", "aria-label": "Tabs" });
  const parts = h("nav", { class: "parts", "aria-label": "Views of this tab" });
  const question = h("p", { class: "question" });
  const chooser = /** @type {HTMLSelectElement} */ (
    h("select", { "aria-label": "Tab", change: () => go(chooser.value) }, TABS.map(({ title, views }) => h("option", { value: views[0].fragment }, title)))
  );
  // One of the two shows: the row of tabs, or where the page is narrow what chooses among them.
  const narrow = h("label", { class: "tab-choice" }, chooser);
  const below = h("div", { class: "below-tabs" }, parts, question);
  const here = badges(report);
  for (const nav of [row, parts]) nav.addEventListener("keydown", along);

  /** @param {View} view the open one */
  function show(view) {
    const open = tabOf(view);
    const focused = [row, parts].find((nav) => nav.contains(document.activeElement));
    row.replaceChildren(...TABS.map((tab) => button(link(tab.views[0].fragment), tab.title, tab === open, here.get(tab) ?? [], lacking(tab, report))));
    parts.replaceChildren(...(open.views.length > 1 ? open.views.map((one) => button(link(one.fragment), one.title, one === view, [], one.lacks?.(report) ?? "")) : []));
    question.textContent = open.question;
    chooser.value = open.views[0].fragment;
    if (focused) /** @type {HTMLElement | null} */ ((focused.children.length ? focused : row).querySelector("[aria-current]"))?.focus();
  }

  /** @param {string} key @param {View} view the open one */
  function pressed(key, view) {
    if (/^[1-8]$/.test(key)) return clicked(links(row)[Number(key) - 1]);
    const { views } = tabOf(view);
    if (key === "[" || key === "]") return clicked(links(parts)[views.indexOf(view) + (key === "]" ? 1 : -1)]);
    return false;
  }

  return { elements: [row, narrow, below], show, pressed, introduction: () => (isSeen() ? [] : [introduction(here)]) };
}

/** @type {[string, string][]} */
export const TAB_KEYS = [
  ["1 to 8", "the tabs, in their order"],
  ["[ and ]", "the view before or after this one, within its tab"],
];

/** The tabs with their questions, for the list of keys. */
export const questions = () => h("dl", { class: "questions" }, TABS.map(({ title, question }, i) => h("div", {}, h("dt", {}, h("kbd", {}, String(i + 1)), title), h("dd", {}, question))));

/**
 * What stands under the verdict until somebody has opened another tab.
 * @param {Map<Tab, Finding[]>} here
 */
function introduction(here) {
  return h(
    "section",
    { class: "card introduction" },
    h("h2", {}, "New here? Eight tabs, a question each", h("small", {}, "until you open one; later under ?")),
    h(
      "ol",
      {},
      TABS.map((tab, i) => h("li", {}, h("h3", {}, h("kbd", {}, String(i + 1)), tab.title, badge(here.get(tab) ?? [])), h("p", {}, tab.question))),
    ),
  );
}

function isSeen() {
  try {
    return localStorage.getItem(SEEN) === "yes";
  } catch {
    return true; // nothing can be kept: better never than each time
  }
}

/** Notes that somebody found the way to another tab. */
export function noteSeen() {
  try {
    localStorage.setItem(SEEN, "yes");
  } catch {
    // nothing can be kept
  }
}

/**
 * The findings with evidence in each tab, all of them in the first.
 * @param {Report} report
 * @returns {Map<Tab, Finding[]>}
 */
function badges({ diagnosis }) {
  const found = new Map(TABS.map((tab) => /** @type {[Tab, Finding[]]} */ ([tab, []])));
  for (const finding of faults(diagnosis)) {
    const views = ["verdict", viewOf(finding), finding.evidence.some(({ window }) => window) ? "timeline" : ""];
    for (const [tab, here] of found) if (tab.views.some(({ fragment }) => views.includes(fragment))) here.push(finding);
  }
  return found;
}

/** @param {Finding} finding */
const viewOf = (finding) => VIEW_OF_OWNER[ownerOf(finding)] ?? (finding.rule.startsWith("memory-") ? "memory" : "budget");

/**
 * A link with the number of findings beside it, which is no part of its name.
 * @param {HTMLAnchorElement} anchor
 * @param {string} title
 * @param {boolean} isOpen
 * @param {Finding[]} here
 * @param {string} lacks
 */
function button(anchor, title, isOpen, here, lacks) {
  anchor.append(title);
  if (isOpen) anchor.setAttribute("aria-current", "page");
  if (lacks) {
    anchor.classList.add("lacks");
    anchor.title = lacks;
  }
  return h("span", {}, anchor, badge(here));
}

/** @param {Finding[]} here */
function badge(here) {
  if (!here.length) return null;
  const names = here.slice(0, MOST_NAMES).map(({ id }) => id);
  const says = `${count(here.length, "finding")} with evidence here: ${names.join(", ")}${here.length > MOST_NAMES ? " …" : ""}`;
  return h("span", { class: "badge", title: says }, String(here.length));
}

/** @param {HTMLElement} nav */
const links = (nav) => [...nav.querySelectorAll("a")];

/**
 * Why none of a tab's views has anything to show.
 * @param {Tab} tab
 * @param {Report} report
 */
function lacking({ views }, report) {
  const reasons = views.map(({ lacks }) => lacks?.(report) ?? "");
  return reasons.every((reason) => reason) ? reasons[0] : "";
}

/** @param {HTMLElement | undefined} element */
function clicked(element) {
  element?.click();
  return Boolean(element);
}

/** @param {KeyboardEvent} event */
function along(event) {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by) return;
  const all = links(/** @type {HTMLElement} */ (event.currentTarget));
  const next = all[all.indexOf(/** @type {HTMLAnchorElement} */ (event.target)) + by];
  if (!next) return;
  event.preventDefault();
  next.focus();
}
