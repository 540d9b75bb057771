// Time per rank and step as a picture with a cursor. Its cells are (column, row) = (step, rank) in equal boxes, right of the
// names of ranks and below the numbers of steps, CSS pixels; of very many ranks a row is the longest of several.

import { MOVES, picture } from "../canvas.js";
import { NAMES, nameRows, namedColumns } from "../chart/marks.js";
import { h } from "../dom.js";
import { ms } from "../format.js";
import { joinedRows, pixels, rgb } from "../heat.js";

/** @typedef {import("../model.js").Grid} Grid */

/** Where the cells begin. */
export const LEFT = NAMES + 6;
const TOP = 20;
/** Rows are as high as these together, and one pixel at least. */
const [TALLEST, FILLS] = [14, 420];
/** More rows do not fit on a page. */
const MOST_ROWS = 600;
/** What the row of an affected rank takes at least, to be seen among many. */
const LOWEST_AFFECTED = 3;
/** What a frame around a low cell takes at least. */
const LOWEST_FRAME = 5;

/**
 * @param {object} given
 * @param {import("../model.js").Views} given.views
 * @param {Grid} given.grid
 * @param {Set<number>} given.affected ranks
 * @param {import("../heat.js").Shade} given.shade
 * @param {(number | null)[]} given.slowest row of each step, to be framed
 * @param {((row: number, column: number) => void) | null} given.go what a click does
 * @param {string} [given.does] the same in words
 * @param {string} [given.owner] whose colour cells have
 * @param {number} [given.tall] pixels of all rows, at most
 */
export function heatMap({ views: { ranks, steps, nodes }, grid, affected, shade, slowest, go, does = "opens its step in the timeline", owner = "host", tall }) {
  const { of, rows } = joinedRows(grid, tall ?? MOST_ROWS);
  const height = Math.max(1, Math.min(TALLEST, Math.floor((tall ?? FILLS) / rows.length)));
  const cursor = { row: 0, column: 0 };
  const marker = h("div", { class: "heat-cursor", hidden: true });
  const joined = of > 1 ? ` A row is the longest of ${of} ranks.` : "";
  const hint = `Point at a cell, or use the arrow keys, for exact values${go ? `; click or Enter ${does}` : ""}.${joined}`;
  const readout = h("p", { class: "readout", "aria-live": "polite" }, hint);
  const canvas = picture("heat-map", `Time of ${ranks.length} ranks in ${steps.length} steps`, draw);
  canvas.style.height = `${TOP + height * rows.length}px`;
  canvas.tabIndex = 0;
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const row = clamped((event.clientY - box.top - TOP) / height, rows.length);
    const column = clamped(((event.clientX - box.left - LEFT) / (box.width - LEFT)) * steps.length, steps.length);
    const within = grid.slice(row * of, (row + 1) * of).findIndex((values) => values[column] === rows[row][column]);
    show(row * of + Math.max(0, within), column);
  });
  canvas.addEventListener("click", () => go?.(cursor.row, cursor.column));
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter") go?.(cursor.row, cursor.column);
    const [down, right] = MOVES[event.key] ?? [0, 0];
    if (!down && !right) return;
    event.preventDefault();
    show(clamped(cursor.row + down, ranks.length), clamped(cursor.column + right, steps.length));
  });
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("blur", leave);

  function leave() {
    marker.hidden = true;
    readout.textContent = hint;
  }

  /** @param {number} row @param {number} column */
  function show(row, column) {
    Object.assign(cursor, { row, column });
    const wide = (canvas.clientWidth - LEFT) / steps.length;
    marker.hidden = false;
    marker.style.cssText =
      `left: ${LEFT + column * wide}px; width: ${wide}px; ` +
      `top: ${TOP + Math.floor(row / of) * height}px; height: ${height}px`;
    const value = grid[row][column];
    readout.textContent =
      `rank ${ranks[row]}${nodes[row] && ` on ${nodes[row]}`}, step ${steps[column]}: ` +
      `${value === null ? "not recorded" : ms(value)}${affected.has(ranks[row]) ? " (affected rank)" : ""}`;
  }

  /** @type {import("../canvas.js").Draw} */
  function draw(context, width, _height, colour) {
    const small = document.createElement("canvas");
    const values = pixels(rows, shade, rgb(colour("card")), rgb(colour(owner)));
    [small.width, small.height] = [values.width, values.height];
    small.getContext("2d")?.putImageData(values, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, LEFT, TOP, width - LEFT, height * rows.length);
    if (height < LOWEST_AFFECTED && affected.size * LOWEST_AFFECTED < rows.length) {
      for (const row of new Set(ranks.flatMap((rank, i) => (affected.has(rank) ? Math.floor(i / of) : []))))
        context.drawImage(small, 0, row, small.width, 1, LEFT, TOP + (row + 0.5) * height - LOWEST_AFFECTED / 2, width - LEFT, LOWEST_AFFECTED);
    }
    const wide = (width - LEFT) / steps.length;
    context.fillStyle = colour("card");
    if (height > 3 && wide > 3) {
      for (let i = 1; i < rows.length; i++) context.fillRect(LEFT, TOP + i * height - 1, width, 1);
      for (let j = 1; j < steps.length; j++) context.fillRect(LEFT + j * wide - 1, TOP, 1, height * rows.length);
    }
    context.strokeStyle = colour("ink");
    context.fillStyle = colour(owner);
    context.lineWidth = height > LOWEST_FRAME ? 1.5 : 1;
    slowest.forEach((row, j) => {
      if (row === null) return;
      const tall = Math.max(LOWEST_FRAME, height);
      const [x, y] = [LEFT + j * wide, TOP + (Math.floor(row / of) + 0.5) * height - tall / 2];
      if (tall > height) context.fillRect(x, y, wide - 1, tall); // it covers its neighbours, to be seen at all
      context.strokeRect(x + 0.75, y + 0.5, wide - 2.5, tall - 1.5);
    });
    context.font = `11px ${getComputedStyle(canvas).fontFamily}`;
    context.fillStyle = colour("soft");
    context.textBaseline = "middle";
    context.textAlign = "center";
    for (const column of namedColumns(steps, width - LEFT)) {
      const text = column ? String(steps[column]) : `step ${steps[column]}`;
      context.fillText(text, Math.min(LEFT + (column + 0.5) * wide, width - 12), TOP / 2 - 1);
    }
    const names = ranks.map((rank) => `rank ${rank}`);
    const isAffected = (/** @type {number} */ row) => affected.has(ranks[row]);
    nameRows(context, colour, { names, affected: isAffected, pitch: height / of, top: TOP, right: LEFT - 6 });
  }

  return { frame: h("div", { class: "heat-frame" }, canvas, marker), readout };
}


/**
 * @param {number} place
 * @param {number} length
 */
const clamped = (place, length) => Math.max(0, Math.min(length - 1, Math.floor(place)));
