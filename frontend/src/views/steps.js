// Time per rank and step, so that a slow rank that moves from step to step is seen. Few values are a table of
// coloured numbers; many are a canvas with a cursor: its cells are (column, row) = (step, rank) in equal boxes, right of
// the names of ranks and below the numbers of steps.

import { isReport } from "../api.js";
import { picture } from "../canvas.js";
import { NAMES, nameRows, namedColumns } from "../chart/marks.js";
import { card, h } from "../dom.js";
import { among, ms } from "../format.js";
import { lines } from "../ranks/lines.js";
import { pixels, rgb, shading, slowest } from "../heat.js";
import { affectedRanks } from "../model.js";
import { ofStep } from "../timeline/place.js";

/** @typedef {import("../views.js").View} View */
/** @typedef {import("../views.js").Shown} Shown */
/** @typedef {import("../model.js").Views} Views */
/** @typedef {import("../model.js").Grid} Grid */

const FEW_RANKS = 16;
const FEW_STEPS = 8;
/** Where the cells of the canvas begin, and what a frame around a low one takes at least, CSS pixels. */
const [LEFT, TOP] = [NAMES + 6, 20];
const LOWEST_FRAME = 5;

/** @type {{id: string, button: string, says: string, of: (views: Views) => Grid}[]} */
const KINDS = [
  { id: "busy", button: "Busy time", says: "Step minus straggler wait.", of: ({ busy_ms }) => busy_ms },
  {
    id: "wait",
    button: "Straggler wait",
    says: "Time in communication until the last rank arrives: short on the straggler, long on the ranks that wait for it.",
    of: ({ budget_ms, busy_ms }) => budget_ms?.wait ?? busy_ms.map((row) => row.map(() => null)),
  },
  { id: "step", button: "Step time", says: "The whole step, straggler wait included.", of: ({ step_ms }) => step_ms },
];

/** @type {View} */
export const steps = {
  title: "Steps",
  fragment: "steps",
  render,
  table({ views }) {
    if (!views) return null;
    return {
      heads: ["rank", "node", "step", ...KINDS.map(({ button }) => `${button.toLowerCase()}, ms`)],
      rows: views.ranks.flatMap((rank, i) =>
        views.steps.map((step, j) => [
          `rank ${rank}`,
          views.nodes[i],
          step,
          ...KINDS.map(({ of }) => of(views)[i]?.[j] ?? null),
        ]),
      ),
    };
  },
  keys: [["Arrow keys, Enter", "move over the ranks and steps of the picture; open one in the timeline"]],
};

/**
 * @param {HTMLElement} element
 * @param {Shown} shown
 */
function render(element, shown) {
  const { diagnosis, views, place, keep } = shown;
  if (!views) {
    element.append(h("p", { class: "note" }, "Time per rank and step is not available for this run."));
    return;
  }
  const affected = affectedRanks(diagnosis);
  const body = h("div");
  const buttons = KINDS.map((kind) => h("button", { type: "button", click: () => choose(kind, true) }, kind.button));
  const note = h("p", { class: "note" });
  const choose = (/** @type {typeof KINDS[0]} */ kind, kept = false) => {
    buttons.forEach((button, j) => button.setAttribute("aria-pressed", String(kind === KINDS[j])));
    note.textContent = kind.says;
    body.replaceChildren(...present(heat(shown, views, kind.of(views), affected, kind.id === "busy")));
    if (kept) keep({ of: kind.id });
  };
  choose(KINDS.find(({ id }) => id === place.of) ?? KINDS[0]);
  element.append(
    card(
      "Time per rank and step",
      h("div", { class: "switch", role: "group", "aria-label": "Time shown" }, buttons),
      note,
      h("p", { class: "moving" }, moving(views, diagnosis.ranks)),
      body,
    ),
  );
}

/** @param {(Node | null)[]} parts */
const present = (parts) => parts.filter((part) => part !== null);

/**
 * Who is slowest from step to step, in words.
 * @param {Views} views
 * @param {readonly number[]} all
 */
function moving(views, all) {
  const rows = slowest(views.busy_ms);
  const ranks = rows.flatMap((row) => (row === null ? [] : [views.ranks[row]]));
  const who = [...new Set(ranks)].sort((a, b) => a - b);
  if (!who.length) return "No rank's busy time is 10 % above the median rank's in any step.";
  const often = `in ${ranks.length} of ${rows.length} steps`;
  if (who.length === 1) return `Rank ${who[0]} has the longest busy time ${often}.`;
  const named = who.length > 12 ? `${who.length} different ranks` : among(who, all, "rank");
  return `The slowest rank changes from step to step: ${named}, ${often}.`;
}

/**
 * The way from a cell to its step and rank in the timeline, both selected; null where that place is not known.
 * @param {Shown} shown
 * @param {number} row
 * @param {number} column
 */
function toTimeline({ views, link }, row, column) {
  const place = views && !isReport && ofStep(views, views.ranks[row], views.steps[column]);
  return place ? link("timeline", { ...place, rank: String(views.ranks[row]), step: String(views.steps[column]) }) : null;
}

/**
 * @param {Shown} shown
 * @param {Views} views
 * @param {Grid} grid
 * @param {Set<number>} affected
 * @param {boolean} ranked whether to frame the slowest rank of each step
 */
function heat(shown, views, grid, affected, ranked) {
  const values = grid.flat().filter((value) => value !== null);
  if (!values.length) return [h("p", { class: "note" }, "No rank recorded a whole step.")];
  const shade = shading(values);
  const key = h(
    "p",
    { class: "key" },
    `median ${ms(shade.median)}`,
    h("i", { class: "ramp" }),
    `${ms(shade.full)}${shade.full > shade.longest ? " (1.5 × median)" : ", longest"}`,
    ranked && h("span", { class: "framed" }, "slowest rank of the step, 10 % or more above the median rank"),
  );
  const few = views.ranks.length <= FEW_RANKS && views.steps.length <= FEW_STEPS;
  const last = ranked ? slowest(grid) : [];
  return few ? [cells(shown, views, grid, affected, shade, last), key] : image(shown, views, grid, affected, shade, last, key);
}

/** @typedef {ReturnType<typeof shading>} Shade */

/**
 * @param {Shown} shown
 * @param {Views} views
 * @param {Grid} grid
 * @param {Set<number>} affected
 * @param {Shade} shade
 * @param {(number | null)[]} last the slowest row of each step
 */
function cells(shown, views, grid, affected, shade, last) {
  const cell = (/** @type {number | null} */ value, /** @type {boolean} */ slow, /** @type {number} */ row, /** @type {number} */ column) => {
    if (value === null) return h("td", { class: "none" }, "–");
    const way = toTimeline(shown, row, column);
    if (way) {
      way.textContent = ms(value);
      way.setAttribute("aria-label", `rank ${views.ranks[row]}, step ${views.steps[column]}: ${ms(value)}, open in timeline`);
    }
    return h(
          "td",
          {
            class: [ink(shade.of(value)), slow && "slowest"].filter(Boolean).join(" "),
            style: `--heat: ${10 + 90 * shade.of(value)}%`,
          },
          way ?? ms(value),
        );
  };
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
          h("th", { scope: "row", class: affected.has(rank) ? "affected" : null }, `rank ${rank}`),
          grid[i].map((value, j) => cell(value, last[j] === i, i, j)),
        ),
      ),
    ),
  );
}

/** The ink that can be read on a shade. */
const ink = (/** @type {number} */ share) => (share > 0.93 ? "full" : share > 0.6 ? "strong" : null);

/**
 * @param {Shown} shown
 * @param {Views} views
 * @param {Grid} grid
 * @param {Set<number>} affected
 * @param {Shade} shade
 * @param {(number | null)[]} last the slowest row of each step
 * @param {HTMLElement} key
 */
function image(shown, views, grid, affected, shade, last, key) {
  const height = Math.max(1, Math.min(14, Math.floor(420 / views.ranks.length)));
  const cursor = { row: 0, column: 0 };
  const marker = h("div", { class: "heat-cursor", hidden: true });
  const hint = `Point at a cell, or use the arrow keys, for exact values${isReport ? "" : "; click or Enter opens its step in the timeline"}.`;
  const readout = h("p", { class: "readout", "aria-live": "polite" }, hint);
  const canvas = picture("heat-map", `Time of ${views.ranks.length} ranks in ${views.steps.length} steps`, draw);
  canvas.style.height = `${TOP + height * views.ranks.length}px`;
  canvas.tabIndex = 0;
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    go(
      (event.clientY - box.top - TOP) / height,
      ((event.clientX - box.left - LEFT) / (box.width - LEFT)) * views.steps.length,
    );
  });
  canvas.addEventListener("click", () => toTimeline(shown, cursor.row, cursor.column)?.click());
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter") toTimeline(shown, cursor.row, cursor.column)?.click();
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
    const wide = (canvas.clientWidth - LEFT) / views.steps.length;
    marker.hidden = false;
    marker.style.cssText =
      `left: ${LEFT + cursor.column * wide}px; width: ${wide}px; ` +
      `top: ${TOP + cursor.row * height}px; height: ${height}px`;
    const value = grid[cursor.row][cursor.column];
    const rank = views.ranks[cursor.row];
    readout.textContent =
      `rank ${rank}${views.nodes[cursor.row] && ` on ${views.nodes[cursor.row]}`}, step ${views.steps[cursor.column]}: ` +
      `${value === null ? "not recorded" : ms(value)}${affected.has(rank) ? " (affected rank)" : ""}`;
  }

  /** @type {import("../canvas.js").Draw} */
  function draw(context, width, _height, colour) {
    const small = document.createElement("canvas");
    const values = pixels(grid, shade.of, rgb(colour("card")), rgb(colour("host")));
    [small.width, small.height] = [values.width, values.height];
    small.getContext("2d")?.putImageData(values, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, LEFT, TOP, width - LEFT, height * grid.length);
    const wide = (width - LEFT) / views.steps.length;
    context.fillStyle = colour("card");
    if (height > 3 && wide > 3) {
      for (let i = 1; i < grid.length; i++) context.fillRect(LEFT, TOP + i * height - 1, width, 1);
      for (let j = 1; j < views.steps.length; j++) context.fillRect(LEFT + j * wide - 1, TOP, 1, height * grid.length);
    }
    context.strokeStyle = colour("ink");
    context.fillStyle = colour("host");
    context.lineWidth = height > LOWEST_FRAME ? 1.5 : 1;
    last.forEach((row, j) => {
      if (row === null) return;
      const tall = Math.max(LOWEST_FRAME, height);
      const [x, y] = [LEFT + j * wide, TOP + (row + 0.5) * height - tall / 2];
      if (tall > height) context.fillRect(x, y, wide - 1, tall); // it covers its neighbours, to be seen at all
      context.strokeRect(x + 0.75, y + 0.5, wide - 2.5, tall - 1.5);
    });
    context.font = `11px ${getComputedStyle(canvas).fontFamily}`;
    context.fillStyle = colour("soft");
    context.textBaseline = "middle";
    context.textAlign = "center";
    for (const column of namedColumns(views.steps, width - LEFT)) {
      const text = column ? String(views.steps[column]) : `step ${views.steps[column]}`;
      context.fillText(text, Math.min(LEFT + (column + 0.5) * wide, width - 12), TOP / 2 - 1);
    }
    const names = views.ranks.map((rank) => `rank ${rank}`);
    const isAffected = (/** @type {number} */ row) => affected.has(views.ranks[row]);
    nameRows(context, colour, { names, affected: isAffected, pitch: height, top: TOP, right: LEFT - 6 });
  }

  return [
    views.steps.length > 1 ? lines(grid, LEFT) : null,
    h("div", { class: "heat-frame" }, canvas, marker),
    key,
    readout,
  ];
}
