// Ranks against ranks as a picture: the busbw between those of one sub-group, and the point-to-point transfers between them.
// Coordinates are CSS pixels; cells begin right of LEFT and below TOP, rows and columns are ranks.

import { paint, picture } from "../canvas.js";
import { namedColumns } from "../chart/marks.js";
import { card, h } from "../dom.js";
import { busbwPairs } from "./pairs.js";

/** @typedef {import("./pairs.js").Group} Group */
/** @typedef {import("./pairs.js").Pair} Pair */
/** @typedef {{id: string, name: string, unit: string, pairs: Pair[], less: boolean}} Matrix `less` where little is bad */

const [LEFT, TOP] = [62, 20];
/** Of the matrix, and of one cell. */
const [WIDEST, LARGEST] = [520, 26];
/** A matrix of more ranks has cells that nobody can point at. */
const MOST_RANKS = 1024;
const FRAMED = 5;

/**
 * @param {Group[]} groups
 * @param {[number, number, number][]} sent sender, receiver, and how many in a step
 * @param {import("../model.js").Diagnosis} diagnosis
 * @param {(group: Group) => string} nameOf
 */
export function pairsCard(groups, sent, { ranks, world_size }, nameOf) {
  if (ranks.length > MOST_RANKS) return null;
  const place = new Map(ranks.map((rank, i) => [rank, i]));
  /** @type {Matrix[]} */
  const all = [
    { id: "busbw", name: "busbw in sub-groups", unit: "GB/s", pairs: busbwPairs(groups, ranks, world_size, nameOf), less: true },
    { id: "sent", name: "point-to-point transfers a step", unit: "a step", pairs: sent.flatMap(([from, to, count]) => [{ a: place.get(from) ?? -1, b: place.get(to) ?? -1, value: count, of: "sent", slow: false }]).filter(({ a, b }) => a >= 0 && b >= 0), less: false },
  ];
  const matrices = all.filter(({ pairs }) => pairs.length);
  if (!matrices.length) return null;
  const body = h("div");
  const draw = (/** @type {string} */ id) => body.replaceChildren(...matrix(matrices.find((one) => one.id === id) ?? matrices[0], ranks));
  const choice = /** @type {HTMLSelectElement} */ (h("select", { change: () => draw(choice.value) }, matrices.map(({ id, name }) => h("option", { value: id }, name))));
  draw(matrices[0].id);
  return card("Ranks against ranks", h("div", { class: "controls" }, h("label", {}, "Shown", choice)), body);
}

/**
 * @param {Matrix} shown
 * @param {number[]} ranks
 */
function matrix({ name, unit, pairs, less }, ranks) {
  const values = pairs.map(({ value }) => value);
  const [least, most] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
  const shade = (/** @type {number} */ value) => {
    const share = most > least ? Math.log(value / least) / Math.log(most / least) : 0.5;
    return less ? 1 - share : share;
  };
  const at = new Map(pairs.map((pair) => [`${pair.a}:${pair.b}`, pair]));
  const hint = `Point at two ranks, or use the arrow keys. ${less ? "Darker is slower; framed: slower than comparable groups." : "Rows send, columns receive."}`;
  const readout = h("p", { class: "readout", "aria-live": "polite" }, hint);
  const cursor = { a: pairs[0].a, b: pairs[0].b };
  let active = false;
  const size = (/** @type {number} */ width) => Math.min(LARGEST, Math.min(WIDEST, width - LEFT) / ranks.length);
  const canvas = picture("pairs-map", `${name} of ${ranks.length} ranks: ${amount(least)} to ${amount(most)}`, (context, width, _height, colour) => {
    const cell = size(width);
    const gap = cell > 6 ? 1 : 0;
    context.fillStyle = colour("line");
    context.fillRect(LEFT, TOP, cell * ranks.length, cell * ranks.length);
    context.fillStyle = colour("transfer");
    for (const { a, b, value } of pairs) {
      context.globalAlpha = 0.2 + 0.8 * shade(value);
      context.fillRect(LEFT + b * cell, TOP + a * cell, Math.max(1, cell - gap), Math.max(1, cell - gap));
    }
    context.globalAlpha = 1;
    const frame = (/** @type {{a: number, b: number}} */ { a, b }, /** @type {string} */ of) => {
      const side = Math.max(FRAMED, cell);
      context.strokeStyle = colour(of);
      context.strokeRect(LEFT + b * cell, TOP + a * cell, side - gap, side - gap);
    };
    context.lineWidth = 1.5;
    for (const pair of pairs) if (pair.slow) frame(pair, "critical");
    context.lineWidth = 2;
    if (active) frame(cursor, "ink");
    context.font = `11px ${getComputedStyle(canvas).fontFamily}`;
    context.fillStyle = colour("soft");
    context.textBaseline = "middle";
    for (const i of namedColumns(ranks, cell * ranks.length)) {
      context.textAlign = "center";
      context.fillText(String(ranks[i]), LEFT + (i + 0.5) * cell, TOP / 2);
      context.textAlign = "right";
      context.fillText(`rank ${ranks[i]}`, LEFT - 6, TOP + (i + 0.5) * cell);
    }
  });
  const resize = () => (canvas.style.height = `${TOP + size(canvas.clientWidth || WIDEST + LEFT) * ranks.length + 2}px`);
  new ResizeObserver(resize).observe(canvas);
  resize();
  canvas.tabIndex = 0;

  /** @param {number} a @param {number} b */
  function show(a, b) {
    cursor.a = Math.max(0, Math.min(ranks.length - 1, a));
    cursor.b = Math.max(0, Math.min(ranks.length - 1, b));
    active = true;
    paint(canvas);
    const pair = at.get(`${cursor.a}:${cursor.b}`);
    const two = less ? `ranks ${ranks[cursor.a]} and ${ranks[cursor.b]}` : `rank ${ranks[cursor.a]} to rank ${ranks[cursor.b]}`;
    readout.textContent = pair ? `${two}: ${amount(pair.value)}, ${pair.of}${pair.slow ? ", slower than comparable groups" : ""}` : `${two}: ${less ? "in no sub-group together" : "no transfers"}`;
  }
  /** @param {number} value */
  function amount(value) {
    return `${value.toLocaleString("en", { maximumSignificantDigits: 3 })}\u00a0${unit}`;
  }
  canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
    const cell = size(canvas.clientWidth);
    show(Math.floor((offsetY - TOP) / cell), Math.floor((offsetX - LEFT) / cell));
  });
  canvas.addEventListener("keydown", (event) => {
    const move = MOVES[event.key];
    if (!move) return;
    event.preventDefault();
    show(cursor.a + move[0], cursor.b + move[1]);
  });
  const leave = () => {
    active = false;
    paint(canvas);
    readout.textContent = hint;
  };
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("blur", leave);
  return [h("div", { class: "heat-frame" }, canvas), readout];
}

/** @type {Record<string, [number, number]>} */
const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
