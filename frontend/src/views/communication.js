// Size against time of each collective, both logarithmic, with the line alpha + bytes / bandwidth, and the bus bandwidth.

import { picture } from "../canvas.js";
import { axisOf, logTicks, place } from "../chart/log.js";
import { detail } from "../detail.js";
import { card, h } from "../dom.js";
import { count, ms, ranges } from "../format.js";
import { grid } from "../grid.js";

/** @typedef {import("../views.js").Shown} Shown */
/**
 * @typedef {object} Family the collectives of one kind in one group
 * @property {string} kind
 * @property {string} group
 * @property {number[]} ranks
 * @property {number} nodes
 * @property {number} size ranks of the group
 * @property {number} bus_factor
 * @property {number} calls
 * @property {number | null} alpha_us
 * @property {number | null} us_per_byte
 * @property {boolean} telling whether the line is to be believed
 * @property {number[]} step
 * @property {number[]} bytes -1 where unknown
 * @property {number[]} transfer_us
 * @property {number[]} wait_us
 * @property {number[]} outlier
 */

/** Families drawn; each has a colour and a shape of its own. */
const DRAWN = 6;
const COLOURS = ["transfer", "compute", "input", "dispatch", "alloc", "sync"];
const LEFT = 62;
const BOTTOM = 34;

/** @type {import("../views.js").View} */
export const communication = {
  title: "Communication",
  fragment: "communication",
  render: (element, shown) => detail(element, shown.diagnosis.name, "communication", (told) => drawn(told, shown)),
  table: () => null, // it has two of its own
};

/**
 * @param {{families: Family[]}} told
 * @param {Shown} shown
 */
function drawn({ families }, shown) {
  if (!families.length) {
    return [card("Size against time", h("p", { class: "note" }, "No collective was matched between ranks: there is nothing to measure."))];
  }
  const known = families.filter(({ bytes, transfer_us }) => bytes.some((size, i) => size > 0 && transfer_us[i] > 0)).slice(0, DRAWN);
  return [
    known.length ? card("Size against time", ...chart(known, families.length)) : null,
    card("By kind and group", summary(families, shown)),
    card("Each collective", calls(families, shown)),
  ];
}

/** @param {Family} family */
const nameOf = ({ kind, group, ranks, nodes }) =>
  `${kind || "unknown"}${group ? ` in group ${group}` : ""}, ${count(ranks.length, "rank")}${nodes > 1 ? ` on ${count(nodes, "node")}` : ""}`;

const size = (/** @type {number} */ bytes) =>
  bytes >= 1e9 ? `${trim(bytes / 1e9)}\u00a0GB` : bytes >= 1e6 ? `${trim(bytes / 1e6)}\u00a0MB` : bytes >= 1e3 ? `${trim(bytes / 1e3)}\u00a0kB` : `${bytes}\u00a0B`;
const trim = (/** @type {number} */ value) => value.toFixed(value < 10 ? 1 : 0).replace(/\.0$/, "");
const time = (/** @type {number} */ us) => ms(us / 1000).replace(/\.0(?=\D)/, "");
const rate = (/** @type {number} */ gbs) => `${gbs.toFixed(gbs < 10 ? 2 : 0)}\u00a0GB/s`;

/**
 * @param {Family[]} families
 * @param {number} all
 */
function chart(families, all) {
  const points = families.flatMap((family, of) =>
    family.bytes.map((bytes, i) => ({ of, i, bytes, us: family.transfer_us[i] })).filter(({ bytes, us }) => bytes > 0 && us > 0),
  );
  const across = axisOf(points.map(({ bytes }) => bytes));
  const up = axisOf(points.map(({ us }) => us));
  const hint = "Point at a collective for its numbers. Far ones are ringed: they took much longer than others of their size.";
  const readout = h("p", { class: "readout", role: "status" }, hint);
  const canvas = picture("scatter", `Size against time of ${count(points.length, "collective")}`, draw);
  const at = (/** @type {number} */ width, /** @type {number} */ height) => ({
    x: (/** @type {number} */ bytes) => LEFT + place(across, bytes) * (width - LEFT - 10),
    y: (/** @type {number} */ us) => (1 - place(up, us)) * (height - BOTTOM),
  });

  /** @type {import("../canvas.js").Draw} */
  function draw(context, width, height, colour) {
    const { x, y } = at(width, height);
    context.font = `11px ${getComputedStyle(canvas).fontFamily}`;
    context.textBaseline = "middle";
    for (const bytes of logTicks(across)) {
      context.fillStyle = colour("line");
      context.fillRect(Math.round(x(bytes)), 0, 1, height - BOTTOM);
      context.fillStyle = colour("soft");
      context.textAlign = "center";
      context.fillText(size(bytes), Math.min(Math.max(x(bytes), LEFT + 20), width - 24), height - BOTTOM + 12);
    }
    for (const us of logTicks(up)) {
      context.fillStyle = colour("line");
      context.fillRect(LEFT, Math.round(y(us)), width - LEFT, 1);
      context.fillStyle = colour("soft");
      context.textAlign = "right";
      if (y(us) > 8) context.fillText(time(us), LEFT - 8, y(us));
    }
    context.textAlign = "right";
    context.fillText("bytes of the message", width - 4, height - 7);
    context.textAlign = "left";
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT, height - BOTTOM);
    context.clip();
    families.forEach((family, of) => line(context, family, colour(COLOURS[of]), width, x, y));
    for (const { of, i, bytes, us } of points) {
      context.fillStyle = colour(COLOURS[of]);
      context.globalAlpha = points.length > 400 ? 0.45 : 0.8;
      dot(context, of, x(bytes), y(us));
      context.globalAlpha = 1;
      if (!families[of].outlier[i]) continue;
      context.strokeStyle = colour("critical");
      context.lineWidth = 1.5;
      context.beginPath();
      context.arc(x(bytes), y(us), 7, 0, 2 * Math.PI);
      context.stroke();
    }
    context.restore();
  }

  canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
    const { x, y } = at(canvas.clientWidth, canvas.clientHeight);
    const far = (/** @type {(typeof points)[number]} */ point) => Math.hypot(x(point.bytes) - offsetX, y(point.us) - offsetY);
    const near = points.reduce((a, b) => (far(b) < far(a) ? b : a));
    readout.textContent = far(near) < 14 ? told(families[near.of], near.i) : hint;
  });
  return [
    families.length < all && h("p", { class: "note" }, `${families.length} of ${all} kinds and groups: those that transfer longest, of known size.`),
    canvas,
    h(
      "ul",
      { class: "legend flush" },
      families.map((family, of) => h("li", {}, h("i", { class: `owner-${COLOURS[of]} shape-${of % 3}` }), nameOf(family), fitted(family))),
    ),
    readout,
  ];
}

/** @param {Family} family */
function fitted({ alpha_us, us_per_byte, telling, bus_factor }) {
  if (alpha_us === null || us_per_byte === null) return ": one size, no line";
  if (!telling) return ": the line is a guess, sizes differ too little";
  return `: ${time(alpha_us)} each, and ${us_per_byte > 0 ? `${rate((bus_factor / us_per_byte) * 1e-3)} on the bus` : "nothing for size"}`;
}

/**
 * @param {Family} family
 * @param {number} i
 */
function told(family, i) {
  const seconds = family.transfer_us[i] / 1e6;
  const parts = [
    `${nameOf(family)}, step ${family.step[i]}: ${size(family.bytes[i])} in ${time(family.transfer_us[i])}`,
    `${rate((family.bytes[i] / seconds / 1e9) * family.bus_factor)} on the bus`,
    `waits of ${time(family.wait_us[i])} before, mean over its ranks`,
    family.outlier[i] ? "far longer than others of its size" : "",
  ];
  return parts.filter(Boolean).join(", ");
}

/**
 * A circle, a square, a diamond: colours alone do not tell families apart.
 * @param {CanvasRenderingContext2D} context
 * @param {number} of
 * @param {number} x
 * @param {number} y
 */
function dot(context, of, x, y) {
  context.beginPath();
  if (of % 3 === 0) context.arc(x, y, 3.5, 0, 2 * Math.PI);
  else if (of % 3 === 1) context.rect(x - 3, y - 3, 6, 6);
  else for (const [dx, dy] of [[0, -4.5], [4.5, 0], [0, 4.5], [-4.5, 0]]) context.lineTo(x + dx, y + dy);
  context.fill();
}

/**
 * alpha + bytes * beta, which is no straight line on logarithmic axes.
 * @param {CanvasRenderingContext2D} context
 * @param {Family} family
 * @param {string} colour
 * @param {number} width
 * @param {(bytes: number) => number} x
 * @param {(us: number) => number} y
 */
function line(context, { alpha_us, us_per_byte, telling, bytes }, colour, width, x, y) {
  if (alpha_us === null || us_per_byte === null) return;
  const known = bytes.filter((value) => value > 0);
  const [from, to] = [Math.log10(Math.min(...known)) - 0.3, Math.log10(Math.max(...known)) + 0.3];
  context.beginPath();
  for (let i = 0; i <= 60; i++) {
    const at = 10 ** (from + ((to - from) * i) / 60);
    const us = alpha_us + at * us_per_byte;
    if (us > 0 && x(at) <= width) context.lineTo(x(at), y(us));
  }
  context.strokeStyle = colour;
  context.lineWidth = 1.5;
  context.setLineDash(telling ? [] : [5, 4]);
  context.stroke();
  context.setLineDash([]);
}

/**
 * @param {Family[]} families
 * @param {Shown} shown
 */
function summary(families, shown) {
  const sum = (/** @type {number[]} */ values) => values.reduce((a, b) => a + b, 0);
  return grid({
    title: "communication",
    shown,
    sort: 5,
    columns: [
      { head: "collective" },
      { head: "ranks" },
      { head: "calls" },
      { head: "bytes", show: size, title: "mean of one" },
      { head: "waits", show: time, title: "of one, mean over its ranks" },
      { head: "transfer", show: time, bar: true, title: "mean of one" },
      { head: "bus", show: rate, title: "bandwidth with nccl-tests' factors" },
      { head: "alpha", show: time, title: "what each costs before its first byte" },
      { head: "by the line", show: rate, title: "bandwidth of the bus beside alpha; only where sizes differ enough to tell" },
      { head: "far" },
    ],
    rows: families.map((family) => {
      const { bytes, transfer_us, wait_us, telling, alpha_us, us_per_byte, bus_factor, outlier } = family;
      const n = Math.max(1, bytes.length);
      const known = bytes.every((value) => value > 0);
      return [
        `${family.kind || "unknown"}${family.group ? ` in group ${family.group}` : ""}`,
        ranges(family.ranks),
        family.calls,
        known ? sum(bytes) / n : null,
        sum(wait_us) / n,
        sum(transfer_us) / n,
        known && sum(transfer_us) > 0 ? (sum(bytes) / sum(transfer_us) / 1e3) * bus_factor : null,
        telling ? alpha_us : null,
        telling && us_per_byte ? (bus_factor / us_per_byte) * 1e-3 : null,
        sum(outlier),
      ];
    }),
  });
}

/**
 * @param {Family[]} families
 * @param {Shown} shown
 */
function calls(families, shown) {
  return grid({
    title: "collectives",
    shown,
    search: "Filter",
    sort: 4,
    columns: [
      { head: "collective" },
      { head: "step" },
      { head: "bytes", show: size },
      { head: "waits", show: time, title: "mean over its ranks" },
      { head: "transfer", show: time, bar: true },
      { head: "bus bandwidth", show: rate },
      { head: "far" },
    ],
    rows: families.flatMap((family) =>
      family.transfer_us.map((us, i) => [
        `${family.kind || "unknown"}${family.group ? ` in group ${family.group}` : ""}`,
        family.step[i],
        family.bytes[i] > 0 ? family.bytes[i] : null,
        family.wait_us[i],
        us,
        family.bytes[i] > 0 && us > 0 ? (family.bytes[i] / us / 1e3) * family.bus_factor : null,
        family.outlier[i] ? "far" : "",
      ]),
    ),
  });
}
