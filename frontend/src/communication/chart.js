// Size against time of each collective, both logarithmic, with the fit alpha + beta * size.

import { isReport } from "../api.js";
import { picture } from "../canvas.js";
import { axisOf, logTicks, place } from "../chart/log.js";
import { h } from "../dom.js";
import { count } from "../format.js";
import { span } from "../timeline/place.js";
import { nameOf, rate, short, size, time, times } from "./family.js";

/** @typedef {import("../views.js").Shown} Shown */
/** @typedef {import("./family.js").Family} Family */

/** Series drawn; each has a colour and a shape of its own. */
const DRAWN = 6;
const COLOURS = ["transfer", "compute", "input", "dispatch", "alloc", "sync"];
/** So near the pointer is at a point, CSS pixels. */
const REACH = 14;
/** Fitted lines drawn of a series. */
const LINES = 8;
const LEFT = 62;
const BOTTOM = 34;

/**
 * Groups with peers together, as the tensor-parallel ones of a job; in the order of their first.
 * @param {Family[]} families
 * @returns {Family[][]}
 */
function seriesOf(families) {
  /** @type {Map<string, Family[]>} */
  const found = new Map();
  for (const family of families) {
    const { kind, size, nodes, peers, group, parallelism } = family;
    const alike = peers ? JSON.stringify([kind, parallelism, size, nodes.length]) : JSON.stringify([kind, size, nodes, group]);
    const series = found.get(alike);
    if (series) series.push(family);
    else found.set(alike, [family]);
  }
  return [...found.values()];
}

/**
 * @param {Family[]} families
 * @param {Shown} shown
 * @returns {(Node | false)[] | null} null where no size or no time is known
 */
export function chart(families, shown) {
  const all = seriesOf(families.filter(({ bytes, transfer_us }) => bytes.some((size, i) => size > 0 && transfer_us[i] > 0)));
  return all.length ? drawn(all.slice(0, DRAWN), all.length, shown) : null;
}

/**
 * @param {Family[][]} series
 * @param {number} all
 * @param {Shown} shown
 */
function drawn(series, all, shown) {
  const points = series.flatMap((families, of) =>
    families.flatMap((family) =>
      family.bytes.map((bytes, i) => ({ of, family, i, bytes, us: family.transfer_us[i] })).filter(({ bytes, us }) => bytes > 0 && us > 0),
    ),
  );
  const across = axisOf(points.map(({ bytes }) => bytes));
  const up = axisOf(points.map(({ us }) => us));
  const hint = `Point at a collective, or use the arrow keys, for its numbers${isReport ? "" : "; click or Enter shows its arrivals in the timeline"}. Ringed: outlier for its size, or in a group slower than comparable groups. Time is without straggler wait.`;
  const readout = h("p", { class: "readout", role: "status" }, hint);
  /** @type {(typeof points)[number] | null} */
  let chosen = null;
  const marker = h("div", { class: "heat-cursor", hidden: true });
  const slowestFirst = [...points].sort((a, b) => b.us - a.us);
  const canvas = picture("scatter", `Time by size of ${count(points.length, "collective")}`, draw);
  const at = (/** @type {number} */ width, /** @type {number} */ height) => ({
    x: (/** @type {number} */ bytes) => LEFT + place(across, bytes) * (width - LEFT - 10),
    y: (/** @type {number} */ us) => (1 - place(up, us)) * (height - BOTTOM),
  });

  /** @type {import("../canvas.js").Draw} */
  function draw(context, width, height, colour) {
    const { x, y } = at(width, height);
    context.font = `11px ${getComputedStyle(canvas).fontFamily}`;
    context.textBaseline = "middle";
    let until = 0;
    for (const bytes of logTicks(across)) {
      context.fillStyle = colour("line");
      context.fillRect(Math.round(x(bytes)), 0, 1, height - BOTTOM);
      const [text, at] = [size(bytes), Math.min(Math.max(x(bytes), LEFT + 20), width - 24)];
      const half = context.measureText(text).width / 2;
      if (at - half < until) continue;
      context.fillStyle = colour("soft");
      context.textAlign = "center";
      context.fillText(text, at, height - BOTTOM + 12);
      until = at + half + 6;
    }
    for (const us of logTicks(up)) {
      context.fillStyle = colour("line");
      context.fillRect(LEFT, Math.round(y(us)), width - LEFT, 1);
      context.fillStyle = colour("soft");
      context.textAlign = "right";
      if (y(us) > 8) context.fillText(short(us), LEFT - 8, y(us));
    }
    context.textAlign = "right";
    context.fillText("size", width - 4, height - 7);
    context.textAlign = "left";
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT, height - BOTTOM);
    context.clip();
    series.forEach((families, of) => families.slice(0, LINES).forEach((family) => line(context, family, colour(COLOURS[of]), width, x, y)));
    for (const { of, family, i, bytes, us } of points) {
      context.fillStyle = colour(COLOURS[of]);
      context.globalAlpha = points.length > 400 ? 0.45 : 0.8;
      dot(context, of, x(bytes), y(us));
      context.globalAlpha = 1;
      if (!family.outlier[i] && !family.is_slow) continue;
      context.strokeStyle = colour("critical");
      context.lineWidth = 1.5;
      context.beginPath();
      context.arc(x(bytes), y(us), 7, 0, 2 * Math.PI);
      context.stroke();
    }
    context.restore();
  }

  /** @param {(typeof points)[number] | null} point */
  function show(point) {
    if (point === chosen) return;
    chosen = point;
    readout.textContent = point ? told(point.family, point.i) : hint;
    marker.hidden = !point;
    if (!point) return;
    const { x, y } = at(canvas.clientWidth, canvas.clientHeight);
    marker.style.cssText = `left: ${x(point.bytes) - 7}px; top: ${y(point.us) - 7}px; width: 14px; height: 14px`;
  }
  canvas.tabIndex = 0;
  canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
    const { x, y } = at(canvas.clientWidth, canvas.clientHeight);
    const far = (/** @type {(typeof points)[number]} */ point) => Math.hypot(x(point.bytes) - offsetX, y(point.us) - offsetY);
    const near = points.reduce((a, b) => (far(b) < far(a) ? b : a));
    show(far(near) < REACH ? near : null);
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const place = chosen ? slowestFirst.indexOf(chosen) + step : 0;
    show(slowestFirst[Math.max(0, Math.min(points.length - 1, place))]);
  });
  canvas.addEventListener("blur", () => show(null));
  const arrivals = () => chosen && !isReport && inTimeline(chosen.family, chosen.i, shown).click();
  canvas.addEventListener("click", arrivals);
  canvas.addEventListener("keydown", ({ key }) => key === "Enter" && arrivals());
  return [
    series.length < all && h("p", { class: "note" }, `${series.length} of ${all} kinds and groups: those with the longest time without wait and known size.`),
    h("div", { class: "heat-frame" }, canvas, marker),
    h(
      "ul",
      { class: "legend flush" },
      series.map((families, of) => h("li", {}, h("i", { class: `owner-${COLOURS[of]} shape-${of % 3}` }), titled(families))),
    ),
    readout,
  ];
}

/** Ranks whose arrivals show. */
const ARRIVALS = 6;

/**
 * The way to a collective's arrivals on some of its ranks.
 * @param {Family} family
 * @param {number} i
 * @param {Shown} shown
 */
function inTimeline({ ranks, kind, last_us, transfer_us, wait_us }, i, { link }) {
  const place = span(last_us[i] - 2 * wait_us[i], last_us[i] + transfer_us[i]);
  return link("timeline", { ...place, ranks: ranks.slice(0, ARRIVALS).join(","), find: kind });
}

/** @param {Family[]} families alike */
function titled(families) {
  const [first] = families;
  if (families.length === 1) return nameOf(first) + fitted(first);
  const slow = families.filter(({ is_slow }) => is_slow).length;
  return `${first.kind || "unknown"} in ${families.length} ${first.parallelism ? `${first.parallelism} ` : ""}groups of ${count(first.size, "rank")}${slow ? `, ${slow} of them slow` : ""}`;
}

/** @param {Family} family */
function fitted({ alpha_us, us_per_byte, significant, bus_factor }) {
  if (alpha_us === null || us_per_byte === null) return ": one size, no fit";
  if (!significant) return ": fit not significant, sizes differ too little";
  return `: latency ${time(alpha_us)}, ${us_per_byte > 0 ? `busbw ${rate((bus_factor / us_per_byte) * 1e-3)} at large size` : "time does not grow with size"}`;
}

/**
 * @param {Family} family
 * @param {number} i
 */
function told(family, i) {
  const seconds = family.transfer_us[i] / 1e6;
  const parts = [
    `${nameOf(family)}, step ${family.step[i]}: ${size(family.bytes[i])} in ${time(family.transfer_us[i])}`,
    `algbw ${rate(family.bytes[i] / seconds / 1e9)}, busbw ${rate((family.bytes[i] / seconds / 1e9) * family.bus_factor)}`,
    `straggler wait ${time(family.wait_us[i])}, mean over its ranks`,
    family.outlier[i] ? "outlier for its size" : "",
    family.is_slow && family.slowdown !== null ? `its group takes ${times(family.slowdown)} as long as ${count(family.peers, "comparable group")}` : "",
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
function line(context, { alpha_us, us_per_byte, significant, bytes }, colour, width, x, y) {
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
  context.setLineDash(significant ? [] : [5, 4]);
  context.stroke();
  context.setLineDash([]);
}
