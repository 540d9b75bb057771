// All ranks as a grid: nodes side by side, the ranks of a node below each other. So a slow node is a column and a slow
// rail a row. Coordinates are CSS pixels; cells begin right of LEFT and below TOP.

import { MOVES, paint, picture } from "../canvas.js";
import { namedColumns } from "../chart/marks.js";
import { h } from "../dom.js";
import { ms } from "../format.js";
import { pixels, rgb, shading } from "../heat.js";
import { places } from "./spread.js";

/** @typedef {import("../model.js").Views} Views */

const [LEFT, TOP] = [54, 20];
/** A cell has room for its value from this width on, and a line of text from this height. */
const [VALUE_PX, LINE] = [64, 14];
/** Above this share of its scale a cell is so dark that its letters are light. */
const DARK = 0.75;
const HINT = "Point at a rank, or use the arrow keys; click or Enter selects it.";

/**
 * @param {Views} views
 * @param {number[]} values of each rank, ms
 * @param {Set<number>} affected
 * @param {number | null} selected
 * @param {(rank: number) => void} select
 */
export function rankGrid({ ranks, nodes }, values, affected, selected, select) {
  const { columns, rows, cells, known } = places(ranks, nodes);
  const shade = shading(values);
  const tall = Math.max(3, Math.min(18, Math.floor(260 / rows)));
  const wide = (/** @type {number} */ width) => (width - LEFT) / columns.length;
  const grid = Array.from({ length: rows }, () => new Float64Array(columns.length).fill(NaN));
  /** The index of the rank of each cell, -1 where there is none. */
  const numbered = new Int32Array(rows * columns.length).fill(-1);
  cells.forEach(({ column, row }, i) => {
    grid[row][column] = values[i];
    numbered[row * columns.length + column] = i;
  });
  const rankAt = (/** @type {number} */ column, /** @type {number} */ row) => {
    const i = column >= 0 && column < columns.length ? (numbered[row * columns.length + column] ?? -1) : -1;
    return i < 0 ? undefined : i;
  };
  let cursor = Math.max(0, ranks.indexOf(selected ?? ranks[0]));
  let active = false;
  const readout = h("p", { class: "readout", "aria-live": "polite" }, HINT);
  const canvas = picture("rank-grid", `${ranks.length} ranks on ${columns.length} ${known ? "nodes" : "columns"}`, (context, width, _, colour) => {
    const pitch = wide(width);
    const gap = gapOf(pitch, tall);
    drawCells(context, colour, grid, shade, { x: LEFT, y: TOP, wide: pitch, tall });
    const frame = (/** @type {number} */ i, /** @type {string} */ name, /** @type {number} */ thick) => {
      const { column, row } = cells[i];
      const size = Math.max(5, pitch);
      context.strokeStyle = colour(name);
      context.lineWidth = thick;
      context.strokeRect(LEFT + column * pitch - (size - pitch) / 2, TOP + row * tall, size - gap, tall - gap);
    };
    ranks.forEach((rank, i) => affected.has(rank) && frame(i, "ink", 1.5));
    if (active) frame(cursor, "accent", 2);
    context.font = `11px ${getComputedStyle(canvas).fontFamily}`;
    context.textBaseline = "middle";
    if (pitch >= VALUE_PX && tall >= LINE) {
      context.textAlign = "center";
      cells.forEach(({ column, row }, i) => {
        context.fillStyle = colour(shade.of(values[i]) > DARK ? "on-owner" : "ink");
        context.fillText(ms(values[i]), LEFT + (column + 0.5) * pitch, TOP + (row + 0.5) * tall);
      });
    } else nameOutliers(context, colour, width, pitch);
    context.fillStyle = colour("soft");
    context.textAlign = "right";
    const every = Math.max(1, Math.ceil(14 / tall));
    for (let row = 0; row < rows; row += every) context.fillText(known ? `GPU ${row}` : `+${row}`, LEFT - 6, TOP + (row + 0.5) * tall);
    context.textAlign = "left";
    let until = 0;
    for (const column of namedColumns(columns.map((_, i) => i), pitch * columns.length)) {
      const x = LEFT + column * pitch;
      const text = columns[column] ?? "";
      if (x < until || x + context.measureText(text).width > width) continue;
      context.fillText(text, x, TOP / 2 - 1);
      until = x + context.measureText(text).width + 8;
    }
  });
  canvas.style.height = `${TOP + tall * rows + 2}px`;
  canvas.tabIndex = 0;

  /**
   * The name and value of the largest affected rank of a column beside its cell, the largest of all first.
   * @param {CanvasRenderingContext2D} context
   * @param {(name: string) => string} colour
   * @param {number} width
   * @param {number} pitch
   */
  function nameOutliers(context, colour, width, pitch) {
    /** @type {{left: number, right: number}[]} */
    const taken = [];
    context.textAlign = "left";
    for (const i of ranks.flatMap((rank, i) => (affected.has(rank) ? i : [])).sort((a, b) => values[b] - values[a])) {
      const text = `rank ${ranks[i]}: ${ms(values[i])}`;
      const long = context.measureText(text).width + 8;
      const [start, y] = [LEFT + cells[i].column * pitch, TOP + (cells[i].row + 0.5) * tall];
      const left = start + pitch + 4 + long > width ? start - 4 - long : start + pitch + 4;
      if (taken.some((other) => left < other.right && left + long > other.left)) continue;
      taken.push({ left, right: left + long });
      context.fillStyle = colour("card");
      context.fillRect(left, y - LINE / 2, long, LINE);
      context.fillStyle = colour("ink");
      context.fillText(text, left + 4, y + 0.5);
    }
  }

  function show(/** @type {number} */ i) {
    cursor = i;
    active = true;
    paint(canvas);
    const node = nodes[i] && ` on ${nodes[i]}`;
    readout.textContent = `rank ${ranks[i]}${node}: ${ms(values[i])}${affected.has(ranks[i]) ? " (affected rank)" : ""}`;
  }
  function leave() {
    active = false;
    paint(canvas);
    readout.textContent = HINT;
  }
  const under = (/** @type {MouseEvent} */ event) => {
    const box = canvas.getBoundingClientRect();
    const [column, row] = [Math.floor((event.clientX - box.left - LEFT) / wide(box.width)), Math.floor((event.clientY - box.top - TOP) / tall)];
    return rankAt(column, row);
  };
  canvas.addEventListener("pointermove", (event) => {
    const i = under(event);
    if (i !== undefined && (i !== cursor || !active)) show(i);
  });
  canvas.addEventListener("click", (event) => {
    const i = under(event);
    if (i !== undefined) select(ranks[i]);
  });
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter") return select(ranks[cursor]);
    const [down, right] = MOVES[event.key] ?? [0, 0];
    if (!down && !right) return;
    event.preventDefault();
    const { column, row } = cells[cursor];
    show(rankAt(column + right, row + down) ?? cursor);
  });
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("blur", leave);
  return [h("div", { class: "heat-frame" }, canvas), scaleKey(shade, ms), readout];
}

/**
 * Draw values as boxes with gaps between them where there is room.
 * @param {CanvasRenderingContext2D} context
 * @param {(name: string) => string} colour
 * @param {ArrayLike<number>[]} values by row and column, NaN where there is nothing
 * @param {ReturnType<typeof shading>} shade
 * @param {{x: number, y: number, wide: number, tall: number}} at the upper left corner, and the size of a box
 */
export function drawCells(context, colour, values, shade, { x, y, wide, tall }) {
  const [rows, columns] = [values.length, values[0]?.length ?? 0];
  const gap = gapOf(wide, tall);
  context.fillStyle = colour("line");
  context.fillRect(x, y, wide * columns, tall * rows);
  const small = document.createElement("canvas");
  [small.width, small.height] = [columns, rows];
  small.getContext("2d")?.putImageData(pixels(values, shade.of, rgb(colour("card")), rgb(colour("host"))), 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, x, y, wide * columns, tall * rows);
  context.fillStyle = colour("card");
  for (let column = 1; gap && column <= columns; column++) context.fillRect(x + column * wide - gap, y, gap, tall * rows);
  for (let row = 1; gap && row <= rows; row++) context.fillRect(x, y + row * tall - gap, wide * columns, gap);
}

/**
 * Between two boxes of a size.
 * @param {number} wide
 * @param {number} tall
 */
export const gapOf = (wide, tall) => (Math.min(wide, tall) > 5 ? 1 : 0);

/**
 * What the shades of ranks stand for.
 * @param {ReturnType<typeof shading>} shade
 * @param {(value: number) => string} show a value as text
 */
export function scaleKey(shade, show) {
  return h("p", { class: "key" }, `median ${show(shade.median)}`, h("i", { class: "ramp" }), `${show(shade.full)}${shade.full > shade.longest ? " (1.5 × median)" : ", largest"}`, h("span", { class: "framed" }, "affected ranks"));
}
