// Ranks against ranks as a picture, or nodes against nodes: the busbw between those of one sub-group, and the point-to-point
// transfers between them. Coordinates are CSS pixels; cells begin right of LEFT and below TOP.

import { MOVES, paint, picture } from "../canvas.js";
import { namedColumns } from "../chart/marks.js";
import { card, h, nearby } from "../dom.js";
import { pixels, rgb } from "../heat.js";
import { kindOf } from "./family.js";
import { busbw, placesOf, pointToPoint, tells } from "./pairs.js";

/** @typedef {import("./pairs.js").Group} Group */
/** @typedef {import("./pairs.js").Place} Place */
/** @typedef {import("./pairs.js").Sent} Sent */
/**
 * @typedef {object} Kind
 * @property {string} id
 * @property {string} name
 * @property {string} unit
 * @property {boolean} less whether little is bad
 * @property {(places: Place[]) => import("./pairs.js").Matrix} of
 * @property {(a: Place, b: Place) => string} said what a value is of
 */

const [LEFT, TOP] = [62, 20];
/** Of the matrix, and of one cell. */
const [WIDEST, LARGEST] = [520, 26];
const FRAMED = 5;
/** More frames cover the cells. */
const MOST_FRAMES = 400;
/** So much of the colour has the palest cell: others are empty. */
const PALEST = 0.2;
/** Names of places that are longer are cut in their middle, pixels. */
const NAME = LEFT - 8;
/** From so many ranks on nodes are shown first. */
const MANY = 128;

/**
 * @param {Group[]} groups
 * @param {Sent[]} sent
 * @param {import("../views.js").Shown} shown
 */
export function pairsCard(groups, sent, { diagnosis: { ranks, world_size, mesh }, views, whole }) {
  const here = new Set(ranks);
  const both = sent.filter(([from, to]) => here.has(from) && here.has(to));
  const telling = groups.filter((group) => tells(group, world_size));
  const named = (/** @type {Place} */ a, /** @type {Place} */ b) => [...new Set(telling.filter((group) => a.ranks.some((rank) => group.ranks.includes(rank)) && b.ranks.some((rank) => group.ranks.includes(rank))).map(kindOf))];
  /** @type {Kind[]} */
  const kinds = [];
  if (telling.length) kinds.push({ id: "busbw", name: "busbw in sub-groups", unit: "GB/s", less: true, of: (places) => busbw(telling, places, world_size), said: (a, b) => shortened(named(a, b)) });
  if (both.some(([, , , bytes, us]) => bytes && us)) kinds.push({ id: "rate", name: "busbw of point-to-point transfers", unit: "GB/s", less: true, of: (places) => pointToPoint(both, places, "rate"), said: () => "bytes sent over the time in which both have a transfer running" });
  if (both.length) kinds.push({ id: "sent", name: "point-to-point transfers a step", unit: "a step", less: false, of: (places) => pointToPoint(both, places, "count"), said: () => "sent" });
  if (!kinds.length) return null;
  const cuts = placesOf(ranks, views?.nodes ?? [], mesh);
  const drawn = () => {
    const { places } = cuts.find(({ id }) => id === by.value) ?? cuts[0];
    return matrix(kinds.find(({ id }) => id === choice.value) ?? kinds[0], places);
  };
  const draw = () => body.replaceChildren(...drawn());
  const choice = /** @type {HTMLSelectElement} */ (h("select", { change: draw }, kinds.map(({ id, name }) => h("option", { value: id }, name))));
  const by = /** @type {HTMLSelectElement} */ (h("select", { change: draw }, cuts.map(({ id, name }) => h("option", { value: id, selected: id === "node" && ranks.length > MANY }, name))));
  // Of thousands of ranks it takes longer than the rest of the view.
  const body = nearby(drawn, whole || ranks.length <= MANY);
  const title = cuts.length > 1 || cuts[0].id === "rank" ? "Ranks against ranks" : "Nodes against nodes";
  return card(title, h("div", { class: "controls" }, h("label", {}, "Shown", choice), cuts.length > 1 && h("label", {}, "A row per", by)), body);
}

/**
 * @param {[number, number, number]} a
 * @param {[number, number, number]} b
 * @param {number} share of the second
 * @returns {[number, number, number]}
 */
const mixed = (a, b, share) => [a[0] + share * (b[0] - a[0]), a[1] + share * (b[1] - a[1]), a[2] + share * (b[2] - a[2])];

/** @param {string[]} names */
const shortened = (names) => (names.length > 3 ? `${names.slice(0, 2).join(", ")} and ${names.length - 2} more` : names.join(", "));

/**
 * @param {Kind} shown
 * @param {Place[]} places
 */
function matrix({ name, unit, less, of, said }, places) {
  const { value, slow } = of(places);
  const n = places.length;
  let [least, most] = [Infinity, -Infinity];
  for (let i = 0; i < value.length; i++) {
    if (value[i] < least) least = value[i];
    if (value[i] > most) most = value[i];
  }
  const shade = (/** @type {number} */ one) => {
    const share = most > least ? Math.log(one / least) / Math.log(most / least) : 0.5;
    return less ? 1 - share : share;
  };
  /** The cells as pixels, in the colours of the theme that they were made for. */
  const cells = { of: "", image: document.createElement("canvas") };
  const coloured = (/** @type {(name: string) => string} */ colour) => {
    const of = `${colour("card")} ${colour("transfer")}`;
    if (cells.of === of) return cells.image;
    const [ground, full] = [rgb(colour("card")), rgb(colour("transfer"))];
    const rows = places.map((_, a) => value.subarray(a * n, (a + 1) * n));
    cells.of = of;
    [cells.image.width, cells.image.height] = [n, n];
    cells.image.getContext("2d")?.putImageData(pixels(rows, shade, mixed(ground, full, PALEST), full), 0, 0);
    return cells.image;
  };
  /** @type {number[]} */
  const marked = [];
  for (let i = slow.indexOf(1); i >= 0; i = slow.indexOf(1, i + 1)) marked.push(i);
  const hint = `Point at a cell, or use the arrow keys. ${less ? "Darker is slower; framed: slower than comparable groups." : "Rows send, columns receive."}`;
  const readout = h("p", { class: "readout", "aria-live": "polite" }, hint);
  const first = value.findIndex((one) => !Number.isNaN(one));
  const cursor = { a: Math.floor(first / n), b: first % n };
  let active = false;
  const size = (/** @type {number} */ width) => Math.min(LARGEST, Math.min(WIDEST, width - LEFT) / n);
  const canvas = picture("pairs-map", `${name} of ${n} rows: ${amount(least)} to ${amount(most)}`, (context, width, _height, colour) => {
    const cell = size(width);
    const gap = cell > 6 ? 1 : 0;
    context.fillStyle = colour("bg");
    context.fillRect(LEFT, TOP, cell * n, cell * n);
    context.strokeStyle = colour("line");
    context.strokeRect(LEFT - 0.5, TOP - 0.5, cell * n + 1, cell * n + 1);
    context.imageSmoothingEnabled = false;
    context.drawImage(coloured(colour), LEFT, TOP, cell * n, cell * n);
    context.fillStyle = colour("card");
    for (let i = 1; gap && i <= n; i++) {
      context.fillRect(LEFT + i * cell - 1, TOP, 1, cell * n);
      context.fillRect(LEFT, TOP + i * cell - 1, cell * n, 1);
    }
    const frame = (/** @type {number} */ a, /** @type {number} */ b, /** @type {string} */ ink) => {
      const side = Math.max(FRAMED, cell);
      context.strokeStyle = colour(ink);
      context.strokeRect(LEFT + b * cell, TOP + a * cell, side - gap, side - gap);
    };
    context.lineWidth = 1.5;
    if (marked.length <= MOST_FRAMES) for (const i of marked) frame(Math.floor(i / n), i % n, "critical");
    context.lineWidth = 2;
    if (active) frame(cursor.a, cursor.b, "ink");
    context.font = `11px ${getComputedStyle(canvas).fontFamily}`;
    context.fillStyle = colour("soft");
    context.textBaseline = "middle";
    let until = 0;
    for (const i of namedColumns(places.map((_, at) => at), cell * n)) {
      const [text, x] = [fitted(context, places[i].name), LEFT + (i + 0.5) * cell];
      const half = context.measureText(text).width / 2;
      context.textAlign = "right";
      context.fillText(text, LEFT - 6, TOP + (i + 0.5) * cell);
      context.textAlign = "center";
      if (x - half < until || x + half > width) continue;
      context.fillText(text, x, TOP / 2);
      until = x + half + 8;
    }
  });
  const resize = () => (canvas.style.height = `${TOP + size(canvas.clientWidth || WIDEST + LEFT) * n + 2}px`);
  new ResizeObserver(resize).observe(canvas);
  resize();
  canvas.tabIndex = 0;

  /** @param {number} a @param {number} b */
  function show(a, b) {
    cursor.a = Math.max(0, Math.min(n - 1, a));
    cursor.b = Math.max(0, Math.min(n - 1, b));
    active = true;
    paint(canvas);
    const [from, to] = [places[cursor.a], places[cursor.b]];
    const i = cursor.a * n + cursor.b;
    const called = (/** @type {Place} */ { name: short, where }) => (where ? `${short} (${where})` : short);
    const two = from === to ? `within ${called(from)}` : `${called(from)} ${less ? "and" : "to"} ${called(to)}`;
    readout.textContent = Number.isNaN(value[i]) ? `${two}: nothing recorded` : `${two}: ${amount(value[i])}, ${said(from, to)}${slow[i] ? ", slower than comparable groups" : ""}`;
  }
  /** @param {number} one */
  function amount(one) {
    return `${one.toLocaleString("en", { maximumSignificantDigits: 3 })}\u00a0${unit}`;
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

/**
 * A name that fits beside its row: hosts of a cluster differ at their end.
 * @param {CanvasRenderingContext2D} context
 * @param {string} name
 */
function fitted(context, name) {
  const { width } = context.measureText(name);
  if (width <= NAME) return name;
  return `…${name.slice(-Math.max(1, Math.floor((name.length * (NAME - 8)) / width)))}`;
}

