// The list of runs on the left: name, verdict at a glance, progress while one is read. Only the rows that are seen are in
// the page, each at its place in a list of full height: y is CSS pixels from its top.

import { h } from "../dom.js";
import { clockTime, count } from "../format.js";
import { dot, outcome, size } from "./look.js";
import { arranged, ORDERS } from "./order.js";
import { MANY_RUNS } from "./triage.js";

/** @typedef {import("../model.js").RunEntry} RunEntry */
/** @typedef {import("./order.js").Row} Row */
/** @typedef {import("./order.js").Order} Order */

/** Heights of rows, as style/runs.css has them. */
const RUN_HEIGHT = 48;
const GROUP_HEIGHT = 32;
/** Rows beyond the edges, so that the Tab key always finds a next one. */
const SPARE = 4;
const KEPT_ORDER = "ddp-doctor.runs-order";

/**
 * @param {(name: string) => void} select
 */
export function runList(select) {
  /** @type {RunEntry[]} */
  let runs = [];
  /** @type {string | null} */
  let open = null;
  let order = keptOrder();
  /** @type {Set<string>} */
  const closed = new Set();
  /** @type {Row[]} */
  let rows = [];
  /** Where each row begins, and after the last where the list ends. */
  let tops = [0];
  /** The rows in the page, by key. @type {Map<string, {element: HTMLElement, shows: string}>} */
  let drawn = new Map();
  let shown = "";

  const filter = /** @type {HTMLInputElement} */ (h("input", { type: "search", "aria-label": "Filter runs by name or verdict", input: arrange }));
  const sort = /** @type {HTMLSelectElement} */ (
    h("select", { "aria-label": "Sort runs", change: () => choose(/** @type {Order} */ (sort.value)) }, ORDERS.map(([id, name]) => h("option", { value: id, selected: id === order }, name)))
  );
  const none = h("p", { class: "note" }, "No runs yet.");
  const list = h("ul", { class: "rows" });
  const scroller = h("div", { class: "scroller", scroll: draw, keydown: along }, list);
  const all = h("button", { type: "button", class: "all-runs", click: () => choosing("") }, "All");
  const controls = h("div", { class: "arrange" }, h("h2", {}, "Runs"), sort, filter, all);
  const menu = h("button", { type: "button", class: "menu", "aria-expanded": "false", click: () => unfold(menu.getAttribute("aria-expanded") !== "true") });
  const element = h("div", { class: "run-list" }, menu, h("div", { class: "folding" }, controls, none, scroller));
  new ResizeObserver(draw).observe(scroller);

  /**
   * @param {RunEntry[]} now
   * @param {string | null} name of the open one
   */
  function update(now, name) {
    const key = JSON.stringify([now, name]);
    if (key === shown) return;
    shown = key;
    const moved = name !== open;
    [runs, open] = [now, name];
    const opened = runs.find((run) => run.name === open);
    menu.replaceChildren(...(opened ? [dot(opened), h("span", { class: "name" }, opened.name), h("small", {}, count(runs.length, "run"))] : ["Runs"]));
    controls.classList.toggle("alone", runs.length < 2);
    all.hidden = runs.length < MANY_RUNS || !open;
    filter.placeholder = `Filter ${count(runs.length, "run")}`;
    arrange();
    if (moved) reveal(rows.findIndex((row) => "run" in row && row.run.name === open));
  }

  function arrange() {
    rows = arranged(runs, order, filter.value, closed);
    tops = [0];
    for (const row of rows) tops.push(tops[tops.length - 1] + ("run" in row ? RUN_HEIGHT : GROUP_HEIGHT));
    list.style.height = `${tops[rows.length]}px`;
    none.hidden = rows.length > 0;
    none.textContent = runs.length ? "No run matches the filter." : "No runs yet.";
    draw();
  }

  /** Put the rows into the page that are seen, and the one with the focus, which must not lose it. */
  function draw() {
    const { scrollTop, clientHeight } = scroller;
    const first = Math.max(0, tops.findLastIndex((top) => top <= scrollTop) - SPARE);
    const behind = tops.findIndex((top) => top >= scrollTop + clientHeight);
    const last = Math.min(rows.length, (behind < 0 ? rows.length : behind) + SPARE);
    const focused = rows.findIndex((row) => drawn.get(keyOf(row))?.element.contains(document.activeElement));
    const wanted = rows.map((_, i) => i).slice(first, last);
    if (focused >= 0 && focused < first) wanted.unshift(focused);
    if (focused >= last) wanted.push(focused);
    /** @type {typeof drawn} */
    const next = new Map();
    for (const i of wanted) {
      const key = keyOf(rows[i]);
      const shows = JSON.stringify([rows[i], key === `run ${open}`, order]);
      const there = drawn.get(key);
      const row = there?.shows === shows ? there : { element: there?.element ?? h("li"), shows };
      if (row !== there) fill(row.element, rows[i]);
      row.element.style.top = `${tops[i]}px`;
      row.element.setAttribute("aria-setsize", String(rows.length));
      row.element.setAttribute("aria-posinset", String(i + 1));
      next.set(key, row);
    }
    for (const [key, { element: old }] of drawn) if (!next.has(key)) old.remove();
    drawn = next;
    // One that has its place is not moved: it would lose the focus.
    let at = list.firstElementChild;
    for (const { element: row } of next.values()) {
      if (row === at) at = at.nextElementSibling;
      else list.insertBefore(row, at);
    }
  }

  /**
   * @param {HTMLElement} item
   * @param {Row} row
   */
  function fill(item, row) {
    const hadFocus = item.contains(document.activeElement);
    item.className = "run" in row ? "" : "folder";
    item.replaceChildren("run" in row ? runButton(row, row.run.name === open, order, choosing) : folderButton(row, fold));
    if (hadFocus) item.querySelector("button")?.focus();
  }

  /** @param {string} name */
  function choosing(name) {
    unfold(false);
    select(name);
  }

  /** @param {string} group */
  function fold(group) {
    if (!closed.delete(group)) closed.add(group);
    arrange();
  }

  /** @param {Order} chosen */
  function choose(chosen) {
    order = chosen;
    try {
      localStorage.setItem(KEPT_ORDER, order);
    } catch {
      // a page without storage forgets it
    }
    arrange();
    scroller.scrollTop = 0;
  }

  /** @param {boolean} isOpen */
  function unfold(isOpen) {
    menu.setAttribute("aria-expanded", String(isOpen));
    draw();
  }

  /** @param {number} row */
  function reveal(row) {
    if (row < 0) return;
    if (tops[row] < scroller.scrollTop) scroller.scrollTop = tops[row];
    else if (tops[row + 1] > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = tops[row + 1] - scroller.clientHeight;
    draw();
  }

  /** @param {KeyboardEvent} event */
  function along(event) {
    const { key } = event;
    if (!["ArrowDown", "ArrowUp", "Home", "End"].includes(key)) return;
    const from = rows.findIndex((row) => drawn.get(keyOf(row))?.element.contains(document.activeElement));
    if (from < 0) return;
    event.preventDefault();
    const to = { ArrowDown: from + 1, ArrowUp: from - 1, Home: 0, End: rows.length - 1 }[key] ?? from;
    if (!rows[to]) return;
    reveal(to);
    drawn.get(keyOf(rows[to]))?.element.querySelector("button")?.focus();
  }

  return { element, update };
}

/** @returns {Order} */
function keptOrder() {
  try {
    const kept = localStorage.getItem(KEPT_ORDER);
    return ORDERS.find(([id]) => id === kept)?.[0] ?? ORDERS[0][0];
  } catch {
    return ORDERS[0][0];
  }
}

/** @param {Row} row */
const keyOf = (row) => ("run" in row ? `run ${row.run.name}` : `group ${row.group}`);

/**
 * @param {{group: string, runs: number, isClosed: boolean}} row
 * @param {(group: string) => void} fold
 */
function folderButton({ group, runs, isClosed }, fold) {
  return h(
    "button",
    { type: "button", class: "folder", title: group, "aria-expanded": String(!isClosed), click: () => fold(group) },
    h("span", { class: "name" }, `${group}/`),
    h("small", {}, String(runs)),
  );
}

/**
 * @param {{run: RunEntry, name: string}} row
 * @param {boolean} isOpen
 * @param {Order} order
 * @param {(name: string) => void} select
 */
function runButton({ run, name }, isOpen, order, select) {
  return h(
    "button",
    { type: "button", class: "run", title: run.name, "aria-current": isOpen ? "true" : null, click: () => select(run.name) },
    dot(run),
    h("span", { class: "name" }, name),
    h("small", { class: "size" }, order === "newest" && run.modified_s ? clockTime(run.modified_s) : size(run)),
    outcome(run),
  );
}
