// Time per rank and step, so that a slow rank that moves from step to step is seen. Few values are a table of
// coloured numbers; many are a canvas with a cursor: its cells are (column, row) = (step, rank) in equal boxes.

import { picture } from "./canvas.js";
import { card, folded, h, table } from "./dom.js";
import { ms } from "./format.js";
import { guilty, largest, mean } from "./model.js";

/** @typedef {import("./model.js").Report} Report */
/** @typedef {import("./model.js").Views} Views */
/** @typedef {import("./model.js").Grid} Grid */

const FEW_RANKS = 16;
const FEW_STEPS = 8;
const MOST_ROWS = 64;

/** @param {Report} report */
export function steps({ diagnosis, views }) {
  if (!views) return null;
  const accused = guilty(diagnosis);
  const body = h("div");
  const kinds = [
    { grid: views.own_ms, button: "Own time", says: "Own time: the step without waiting for other ranks." },
    { grid: views.step_ms, button: "Whole step", says: "The whole step, waiting included." },
  ];
  const buttons = kinds.map(({ button }, i) => h("button", { type: "button", click: () => choose(i) }, button));
  const note = h("p", { class: "note" });
  const choose = (/** @type {number} */ i) => {
    buttons.forEach((button, j) => button.setAttribute("aria-pressed", String(i === j)));
    note.textContent = kinds[i].says;
    body.replaceChildren(...heat(views, kinds[i].grid, accused));
  };
  choose(0);
  return card("Time per rank and step", h("div", { class: "switch" }, buttons), note, body);
}

/**
 * @param {Views} views
 * @param {Grid} grid
 * @param {Set<number>} accused
 */
function heat(views, grid, accused) {
  const values = grid.flat().filter((value) => value !== null);
  if (!values.length) return [h("p", { class: "note" }, "No rank has a whole step.")];
  const shade = shading(values);
  const key = h(
    "p",
    { class: "key" },
    `median ${ms(shade.median)}`,
    h("i", { class: "ramp" }),
    `${ms(shade.full)}${shade.full > Math.max(...values) ? " (1.5 × median)" : ", the longest"}`,
  );
  const few = views.ranks.length <= FEW_RANKS && views.steps.length <= FEW_STEPS;
  return few ? [cells(views, grid, accused, shade), key] : image(views, grid, accused, shade, key);
}

/**
 * How far a value stands above the median: 0 at or below it, 1 at half as much again, or at the longest if that is
 * more. So an even job stays pale, however long its steps are.
 * @param {number[]} values
 */
function shading(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const median = sorted[Math.floor((sorted.length - 1) / 2)];
  const full = Math.max(1.5 * median, sorted[sorted.length - 1]);
  const of = (/** @type {number} */ value) => (full > median ? Math.max(0, value - median) / (full - median) : 0);
  return { median, full, of };
}

/** @typedef {ReturnType<typeof shading>} Shade */

/**
 * @param {Views} views
 * @param {Grid} grid
 * @param {Set<number>} accused
 * @param {Shade} shade
 */
function cells(views, grid, accused, shade) {
  const cell = (/** @type {number | null} */ value) =>
    value === null
      ? h("td", { class: "none" }, "–")
      : h("td", { class: ink(shade.of(value)), style: `--heat: ${10 + 90 * shade.of(value)}%` }, ms(value));
  return h(
    "table",
    { class: "heat" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("td"),
        views.steps.map((step) => h("th", { scope: "col" }, `step ${step}`)),
      ),
    ),
    h(
      "tbody",
      {},
      views.ranks.map((rank, i) =>
        h(
          "tr",
          {},
          h("th", { scope: "row", class: accused.has(rank) ? "accused" : null }, `rank ${rank}`),
          grid[i].map(cell),
        ),
      ),
    ),
  );
}

/** The ink that can be read on a shade. */
const ink = (/** @type {number} */ share) => (share > 0.93 ? "full" : share > 0.6 ? "strong" : null);

/**
 * @param {Views} views
 * @param {Grid} grid
 * @param {Set<number>} accused
 * @param {Shade} shade
 * @param {HTMLElement} key
 */
function image(views, grid, accused, shade, key) {
  const height = Math.max(1, Math.min(14, Math.floor(420 / views.ranks.length)));
  const cursor = { row: 0, column: 0 };
  const marker = h("div", { class: "heat-cursor", hidden: true });
  const hint = "Point at the picture, or move with the arrow keys, for exact values.";
  const readout = h("p", { class: "readout", "aria-live": "polite" }, hint);
  const canvas = picture("heat-map", `Time of ${views.ranks.length} ranks in ${views.steps.length} steps`, draw);
  canvas.style.height = `${height * views.ranks.length}px`;
  canvas.tabIndex = 0;
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    go(
      ((event.clientY - box.top) / box.height) * views.ranks.length,
      ((event.clientX - box.left) / box.width) * views.steps.length,
    );
  });
  canvas.addEventListener("keydown", (event) => {
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[
      event.key
    ] ?? [0, 0];
    if (!down && !right) return;
    event.preventDefault();
    go(cursor.row + down, cursor.column + right);
  });
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("blur", leave);

  function leave() {
    marker.hidden = true;
    readout.textContent = hint;
  }

  function go(/** @type {number} */ row, /** @type {number} */ column) {
    cursor.row = Math.max(0, Math.min(views.ranks.length - 1, Math.floor(row)));
    cursor.column = Math.max(0, Math.min(views.steps.length - 1, Math.floor(column)));
    const wide = canvas.clientWidth / views.steps.length;
    marker.hidden = false;
    marker.style.cssText = `left: ${cursor.column * wide}px; top: ${cursor.row * height}px; width: ${wide}px; height: ${height}px`;
    const value = grid[cursor.row][cursor.column];
    const rank = views.ranks[cursor.row];
    readout.textContent =
      `rank ${rank}${views.nodes[cursor.row] && ` on ${views.nodes[cursor.row]}`}, step ${views.steps[cursor.column]}: ` +
      `${value === null ? "not recorded" : ms(value)}${accused.has(rank) ? " (accused)" : ""}`;
  }

  /** @type {import("./canvas.js").Draw} */
  function draw(context, width, _height, colour) {
    const wide = width / views.steps.length;
    const gap = height > 3 && wide > 3 ? 1 : 0;
    context.fillStyle = colour("host");
    grid.forEach((row, i) =>
      row.forEach((value, j) => {
        if (value === null) return;
        context.globalAlpha = 0.1 + 0.9 * shade.of(value);
        context.fillRect(j * wide, i * height, wide - gap, height - gap);
      }),
    );
  }

  const rows = largest(grid.map(mean), (i) => accused.has(views.ranks[i]), MOST_ROWS);
  const label =
    rows.length < views.ranks.length ? `The ${rows.length} longest ranks as a table` : "The same numbers as a table";
  const numbers = () =>
    table(
      ["rank", ...views.steps.map((step) => `step ${step}`)],
      rows.map((i) => [`rank ${views.ranks[i]}`, ...grid[i].map((value) => (value === null ? "–" : ms(value)))]),
    );
  return [
    h("p", { class: "axes" }, `rank ${views.ranks[0]} at the top, step ${views.steps[0]} at the left`),
    h("div", { class: "heat-frame" }, canvas, marker),
    key,
    readout,
    folded(label, numbers),
  ];
}
