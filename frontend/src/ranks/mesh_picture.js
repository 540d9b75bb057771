// The ranks of a mesh as small grids of one scale, with the means of each row and column beside them.

import { MOVES, paint, picture } from "../canvas.js";
import { namedColumns, namedRows } from "../chart/marks.js";
import { h } from "../dom.js";
import { count } from "../format.js";
import { shading } from "../heat.js";
import { drawCells, gapOf, scaleKey } from "./grid.js";
import { meansOf, panelsOf, placed } from "./mesh.js";

/** Width of a letter, CSS pixels, at most: what a text may take is known before there is a canvas to measure it. */
const CHARACTER = 7.2;
const HINT = "Point at a rank, or use the arrow keys; click or Enter selects it.";

/**
 * @param {object} given
 * @param {import("../../schema.js").MeshTable} given.mesh
 * @param {import("./mesh.js").Layout} given.layout
 * @param {number[]} given.ranks
 * @param {number[]} given.values of each rank
 * @param {(value: number) => string} given.show a value as text
 * @param {(rank: number) => string} given.nameOf a rank with where it is
 * @param {Set<number>} given.affected
 * @param {(rank: number) => void} given.select
 */
export function meshPicture({ mesh, layout, ranks, values, show: shown, nameOf, affected, select }) {
  const panels = panelsOf(mesh, ranks, layout);
  const means = panels.map((panel) => meansOf(panel, values));
  const shade = shading(means.flatMap(({ cells }) => cells.flat().filter((value) => !Number.isNaN(value))));
  const [rows, columns] = [panels[0]?.cells.length ?? 0, panels[0]?.cells[0]?.length ?? 0];
  const least = Math.min(...means.flatMap(({ cells }) => cells.flat().filter((value) => !Number.isNaN(value))));
  const share = (/** @type {number} */ value) => (shade.longest > least && value === value ? (value - least) / (shade.longest - least) : 0);
  const isAffected = (/** @type {number[] | undefined} */ cell) => cell?.some((i) => affected.has(ranks[i])) ?? false;
  const titles = panels.map(({ name }, n) => `${name} mean ${shown(means[n].all)}`);
  const text = { names: 14 + CHARACTER * `${layout.rows} ${rows - 1}`.length, title: CHARACTER * Math.max(...titles.map((title) => title.length)) };
  const places = (/** @type {number} */ width) => placed(width, { rows, columns, panels: panels.length }, text);
  const cursor = { panel: 0, row: 0, column: 0 };
  let active = false;
  const readout = h("p", { class: "readout", "aria-live": "polite" }, HINT);
  const label = `${count(ranks.length, "rank")}: ${layout.rows} down, ${layout.columns} across${layout.panels.length ? `, a panel for each ${layout.panels.join(" and ")}` : ""}`;
  const canvas = picture("rank-grid", label, draw);
  canvas.tabIndex = 0;
  canvas.style.height = "200px";

  /** @type {import("../canvas.js").Draw} */
  function draw(context, width, height, colour) {
    const place = places(width);
    if (Math.abs(height - place.height) > 1) {
      canvas.style.height = `${place.height}px`; // which draws it again
      return;
    }
    const { fontFamily } = getComputedStyle(canvas);
    panels.forEach((panel, n) => {
      const { x, y, isFirst } = place.at(n);
      drawPanel(context, colour, n, place);
      drawMeans(context, colour, n, place);
      context.textBaseline = "middle";
      context.textAlign = "left";
      context.font = `650 12px ${fontFamily}`;
      context.fillStyle = colour("ink");
      context.fillText(panel.name, x, y - 28);
      const named = panel.name ? context.measureText(panel.name).width + 8 : 0;
      context.font = `12px ${fontFamily}`;
      context.fillStyle = colour("soft");
      context.fillText(`mean ${shown(means[n].all)}`, x + named, y - 28);
      context.font = `11px ${fontFamily}`;
      let until = 0;
      for (const column of namedColumns(Array.from({ length: columns }, (_, i) => i), place.wide * columns)) {
        const text = column || place.wide > 30 ? String(column) : `${layout.columns} ${column}`;
        const left = x + column * place.wide;
        if (left < until) continue;
        context.fillText(text, left, y - 10);
        until = left + context.measureText(text).width + 6;
      }
      if (!isFirst) return;
      context.textAlign = "right";
      for (const row of namedRows(rows, place.tall, () => false)) context.fillText(`${layout.rows} ${row}`, x - 6, y + (row + 0.5) * place.tall);
    });
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {(name: string) => string} colour
   * @param {number} n
   * @param {ReturnType<typeof placed>} place
   */
  function drawPanel(context, colour, n, { at, wide, tall }) {
    const { x, y } = at(n);
    drawCells(context, colour, means[n].cells, shade, { x, y, wide, tall });
    // One line around affected ranks that are neighbours, so that a slow stage or group is one frame.
    context.strokeStyle = colour("ink");
    context.lineWidth = 1.5;
    const { cells } = panels[n];
    context.beginPath();
    for (let row = 0; row <= rows; row++)
      for (let column = 0; column <= columns; column++) {
        const here = isAffected(cells[row]?.[column]);
        const [left, top] = [x + column * wide, y + row * tall];
        if (here !== isAffected(cells[row - 1]?.[column])) context.rect(left, top - 0.5, wide, 0);
        if (here !== isAffected(cells[row]?.[column - 1])) context.rect(left - 0.5, top, 0, tall);
      }
    context.stroke();
    if (!active || cursor.panel !== n) return;
    context.strokeStyle = colour("accent");
    context.lineWidth = 2;
    const gap = gapOf(wide, tall);
    context.strokeRect(x + cursor.column * wide, y + cursor.row * tall, wide - gap, tall - gap);
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {(name: string) => string} colour
   * @param {number} n
   * @param {ReturnType<typeof placed>} place
   */
  function drawMeans(context, colour, n, { at, wide, tall, bar }) {
    const { x, y } = at(n);
    const long = (/** @type {number} */ value) => 2 + share(value) * (bar - 8);
    context.fillStyle = colour("soft");
    means[n].rows.forEach((value, row) => context.fillRect(x + columns * wide + 4, y + row * tall + tall * 0.2, long(value), Math.max(1, tall * 0.6)));
    means[n].columns.forEach((value, column) => context.fillRect(x + column * wide + wide * 0.2, y + rows * tall + 4, Math.max(1, wide * 0.6), long(value)));
  }

  /** @param {{panel: number, row: number, column: number}} to */
  function show(to) {
    const here = panels[to.panel]?.cells[to.row]?.[to.column];
    if (!here) return;
    Object.assign(cursor, to);
    active = true;
    paint(canvas);
    const [i] = here;
    if (i === undefined) readout.textContent = `${[panels[to.panel].name, `${layout.rows} ${to.row}`, `${layout.columns} ${to.column}`].filter(Boolean).join(", ")}: no trace`;
    else if (here.length > 1) readout.textContent = `mean of ${count(here.length, "rank")}, ${nameOf(ranks[i])} the first: ${shown(means[to.panel].cells[to.row][to.column])}`;
    else readout.textContent = `${nameOf(ranks[i])}: ${shown(values[i])}${affected.has(ranks[i]) ? " (affected rank)" : ""}`;
  }
  function leave() {
    active = false;
    paint(canvas);
    readout.textContent = HINT;
  }
  /** @param {MouseEvent} event */
  function under(event) {
    const box = canvas.getBoundingClientRect();
    const { at, wide, tall } = places(box.width);
    for (let panel = 0; panel < panels.length; panel++) {
      const { x, y } = at(panel);
      const [column, row] = [Math.floor((event.clientX - box.left - x) / wide), Math.floor((event.clientY - box.top - y) / tall)];
      if (row >= 0 && row < rows && column >= 0 && column < columns) return { panel, row, column };
    }
    return null;
  }
  const choose = () => {
    const [i] = panels[cursor.panel]?.cells[cursor.row]?.[cursor.column] ?? [];
    if (i !== undefined) select(ranks[i]);
  };
  canvas.addEventListener("pointermove", (event) => {
    const to = under(event);
    if (to) show(to);
  });
  canvas.addEventListener("click", (event) => {
    const to = under(event);
    if (!to) return;
    show(to);
    choose();
  });
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter") return choose();
    const [down, right] = MOVES[event.key] ?? [0, 0];
    if (!down && !right) return;
    event.preventDefault();
    const to = { ...cursor, row: cursor.row + down, column: cursor.column + right };
    // Over the edge lies the next panel.
    if (to.column < 0 || to.column >= columns) {
      to.panel += right;
      to.column = right > 0 ? 0 : columns - 1;
    }
    show(to);
  });
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("blur", leave);
  return [h("div", { class: "heat-frame" }, canvas), scaleKey(shade, shown), readout];
}
