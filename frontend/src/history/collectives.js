// Collectives over hours: bus bandwidth, or how far apart ranks arrive, of one group as a line and of all as a heat map.
//
// x is CSS pixels: names stand left of `left`, and all of the time fills the rest. From top to bottom:
//   the chosen group's line | a row for each group | the axis of time

import { MOVES, paint, picture } from "../canvas.js";
import { nameRows } from "../chart/marks.js";
import { h } from "../dom.js";
import { ms, percent } from "../format.js";
import { pixels, rgb } from "../heat.js";
import { fitting } from "../timeline/frame.js";
import { ticks } from "../timeline/scale.js";
import { clockTicks } from "./clock.js";
import { excessOf, gbs, saidOf } from "./collective_groups.js";
import { binAt } from "./model.js";

/** @typedef {import("./model.js").CollectivesOverTime} CollectivesOverTime */
/** @typedef {import("./collective_groups.js").Quantity} Quantity */

/** Room for names: as much, or this share of a narrow picture; heights of the line and the axis, room above both pictures. */
const [NAMES, NARROW, LINE, AXIS, ROOM] = [230, 0.4, 110, 20, 22];
/** Height of a row, CSS pixels. */
const PITCH = 16;
/** The darkest shade is at least this share below a group's best bandwidth, or this wait, ms. */
const DARKEST = { busbw: 0.1, skew: 0.1 };

/** @param {CollectivesOverTime} over */
export function collectivesPicture({ edges_s: edges, groups }) {
  const count = edges.length - 1;
  const span = { from: edges[0], to: edges[count] };
  const hint = "Point at the picture, or use the arrow keys, for exact values; a click chooses the group of the line.";
  const readout = h("p", { class: "readout", "aria-live": "polite" }, hint);
  const top = { line: ROOM, rows: 2 * ROOM + LINE };
  const bottom = top.rows + PITCH * groups.length;
  let quantity = /** @type {Quantity} */ ("busbw");
  let chosen = 0;
  let cursor = [0, count - 1];
  const canvas = picture("collective-hours", `Busbw and arrival skew of ${groups.length} groups over time`, draw);
  canvas.style.height = `${bottom + AXIS}px`;
  canvas.tabIndex = 0;
  const left = () => Math.min(NAMES, canvas.clientWidth * NARROW) + 6;
  const x = (/** @type {number} */ at) => left() + ((at - span.from) / (span.to - span.from)) * (canvas.clientWidth - left());
  const rowAt = (/** @type {number} */ y) => Math.max(0, Math.min(groups.length - 1, Math.floor((y - top.rows) / PITCH)));

  canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
    const at = span.from + ((offsetX - left()) / (canvas.clientWidth - left())) * (span.to - span.from);
    show(offsetY < top.rows ? chosen : rowAt(offsetY), binAt(edges, at));
  });
  canvas.addEventListener("pointerleave", () => (readout.textContent = hint));
  canvas.addEventListener("click", ({ offsetY }) => offsetY >= top.rows && choose(rowAt(offsetY)));
  canvas.addEventListener("keydown", (event) => {
    const move = MOVES[event.key];
    if (move) {
      const [row, bin] = [cursor[0] + move[0], cursor[1] + move[1]];
      show(Math.max(0, Math.min(groups.length - 1, row)), Math.max(0, Math.min(count - 1, bin)));
      if (move[0]) choose(cursor[0]);
    } else if (event.key === "Enter") choose(cursor[0]);
    else return;
    event.preventDefault();
  });

  /** @param {number} row */
  function choose(row) {
    chosen = row;
    paint(canvas);
  }

  /** @param {number} row @param {number} bin */
  function show(row, bin) {
    cursor = [row, bin];
    readout.textContent = saidOf(groups[row], edges, bin);
  }

  /** @type {import("../canvas.js").Draw} */
  function draw(context, width, _height, colour) {
    context.font = `11px ${getComputedStyle(canvas).fontFamily}`;
    context.textBaseline = "middle";
    timeAxis(context, colour, width);
    line(context, colour, width);
    rows(context, colour, width);
  }

  /** @param {CanvasRenderingContext2D} context @param {(name: string) => string} colour @param {number} width */
  function timeAxis(context, colour, width) {
    context.textAlign = "center";
    for (const { at, text } of clockTicks(span, width - left())) {
      context.fillStyle = colour("line");
      context.fillRect(Math.round(x(at)), top.line, 1, bottom - top.line);
      context.fillStyle = colour("soft");
      if (x(at) > left() + 18 && x(at) < width - 18) context.fillText(text, x(at), bottom + AXIS / 2);
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {(name: string) => string} colour @param {number} width */
  function line(context, colour, width) {
    const group = groups[chosen];
    const drawn = quantity === "busbw" ? [group.low_gbs, group.busbw_gbs] : [group.wait_ms];
    const most = Math.max(1e-9, ...drawn.flat().map((value) => value ?? 0)) * 1.05;
    const y = (/** @type {number} */ value) => top.line + LINE - (value / most) * LINE;
    context.textAlign = "left";
    context.fillStyle = colour("ink");
    const what = quantity === "busbw" ? "busbw: median (thick), slowest twentieth" : "arrival skew: from the first rank to the last";
    context.fillText(fitting(context, `${group.name}, ${what}`, width), 0, top.line - ROOM / 2);
    context.textAlign = "right";
    context.fillStyle = colour("soft");
    for (const value of ticks({ from: 0, to: most }, LINE, 30)) context.fillText(quantity === "busbw" ? gbs(value) : ms(value), left() - 6, y(value));
    drawn.forEach((values, i) => {
      context.strokeStyle = colour("accent");
      context.lineWidth = i === drawn.length - 1 ? 2 : 1;
      context.beginPath();
      let goesOn = false;
      values.forEach((value, bin) => {
        if (value !== null) context[goesOn ? "lineTo" : "moveTo"]((x(edges[bin]) + x(edges[bin + 1])) / 2, y(value));
        goesOn = value !== null;
      });
      context.stroke();
    });
    context.fillStyle = colour("line");
    context.fillRect(left(), top.line + LINE, width - left(), 1);
  }

  /** @param {CanvasRenderingContext2D} context @param {(name: string) => string} colour @param {number} width */
  function rows(context, colour, width) {
    const values = groups.map((group) => excessOf(group, quantity));
    const full = Math.max(DARKEST[quantity], ...values.flat().map((value) => value ?? 0));
    const small = document.createElement("canvas");
    const image = pixels(values, (value) => Math.min(1, value / full), rgb(colour("card")), rgb(colour("host")));
    [small.width, small.height] = [image.width, image.height];
    small.getContext("2d")?.putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, left(), top.rows, width - left(), PITCH * groups.length);
    context.textAlign = "left";
    context.fillStyle = colour("ink");
    const shades = quantity === "busbw" ? `Below each group's best busbw, darkest: ${percent(full)}` : `Arrival skew, darkest: ${ms(full)}`;
    context.fillText(fitting(context, shades, width), 0, top.rows - ROOM / 2);
    nameRows(context, colour, { names: groups.map(({ name }) => name), affected: () => false, pitch: PITCH, top: top.rows, right: left() - 6 });
    context.strokeStyle = colour("accent");
    context.lineWidth = 1;
    context.strokeRect(left() + 0.5, top.rows + chosen * PITCH + 0.5, width - left() - 1, PITCH - 1);
  }

  const choice = /** @type {HTMLSelectElement} */ (
    h(
      "select",
      {
        change: () => {
          quantity = choice.value === "skew" ? "skew" : "busbw";
          paint(canvas);
        },
      },
      h("option", { value: "busbw" }, "busbw"),
      h("option", { value: "skew" }, "arrival skew"),
    )
  );
  return h("div", {}, h("div", { class: "controls" }, h("label", {}, "Groups by", choice)), h("div", { class: "heat-frame" }, canvas), readout);
}
