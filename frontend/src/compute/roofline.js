// FLOP per byte against FLOP per second of each kernel, both logarithmic, below the roofs of memory and of each precision.
// A dot's area is the kernel's time. Coordinates are CSS pixels; from LEFT to the right edge, from 0 to BOTTOM above the
// lower one.

import { isReport } from "../api.js";
import { picture } from "../canvas.js";
import { axisOf, logTicks, place } from "../chart/log.js";
import { h } from "../dom.js";
import { count, ms, percent } from "../format.js";
import { span } from "../timeline/place.js";
import { aboveOf, colourOf, COLOURS, nameOf, points, rateOf, shareOf, short } from "./kernels.js";

/** @typedef {import("./kernels.js").Roofline} Roofline */
/** @typedef {import("./kernels.js").Kernel} Kernel */
/** @typedef {import("../views.js").Shown} Shown */

const LEFT = 62;
const BOTTOM = 34;
const REACH = 16;
/** Radii of the largest and of the smallest dot. */
const [LARGEST, SMALLEST] = [22, 2.5];

/**
 * @param {Roofline} told
 * @param {Shown} shown
 * @returns {(Node | null)[] | null} null where no kernel or no roof is known
 */
export function roofline(told, shown) {
  const all = points(told.kernels);
  if (!all.length || !(told.bandwidth > 0)) return null;
  const peaks = Object.entries(told.peaks).filter(([, rate]) => rate > 0);
  const used = peaks.filter(([, rate]) => all.some(({ kernel }) => kernel.peak_flops === rate));
  const highest = Math.max(...(used.length ? used : peaks).map(([, rate]) => rate));
  const across = axisOf([...all.map(({ intensity }) => intensity), highest / told.bandwidth]);
  const up = axisOf([...all.map(({ rate }) => rate), highest]);
  const longest = Math.max(...all.map(({ kernel }) => kernel.ms));
  const largestFirst = [...all].sort((a, b) => b.kernel.ms - a.kernel.ms);
  const hint = `Point at a kernel, or use the arrow keys, for its numbers${isReport ? "" : "; click or Enter shows its longest call in the timeline"}. The line above a dot is its distance to the roof.`;
  const readout = h("p", { class: "readout", role: "status" }, hint);
  /** @type {(typeof all)[number] | null} */
  let chosen = null;
  const marker = h("div", { class: "heat-cursor", hidden: true });
  const canvas = picture("scatter", `Roofline of ${count(all.length, "kernel")} with FLOP on ${told.device}`, draw);
  const radius = (/** @type {Kernel} */ { ms: taken }) => Math.max(SMALLEST, LARGEST * Math.sqrt(taken / longest));
  const at = (/** @type {number} */ width, /** @type {number} */ height) => ({
    x: (/** @type {number} */ intensity) => LEFT + place(across, intensity) * (width - LEFT - 10),
    y: (/** @type {number} */ rate) => (1 - place(up, rate)) * (height - BOTTOM),
  });
  const roofOf = (/** @type {(typeof all)[number]} */ { kernel, intensity }) => Math.min(kernel.peak_flops || Infinity, intensity * told.bandwidth);

  /** @type {import("../canvas.js").Draw} */
  function draw(context, width, height, colour) {
    const { x, y } = at(width, height);
    const [left, right] = [10 ** across.low, 10 ** across.high];
    context.font = `11px ${getComputedStyle(canvas).fontFamily}`;
    context.textBaseline = "middle";
    for (const value of logTicks(across)) {
      context.fillStyle = colour("line");
      context.fillRect(Math.round(x(value)), 0, 1, height - BOTTOM);
      context.fillStyle = colour("soft");
      context.textAlign = "center";
      context.fillText(short(value), x(value), height - BOTTOM + 12);
    }
    for (const value of logTicks(up)) {
      context.fillStyle = colour("line");
      context.fillRect(LEFT, Math.round(y(value)), width - LEFT, 1);
      context.fillStyle = colour("soft");
      context.textAlign = "right";
      if (y(value) > 20) context.fillText(short(value / 1e12), LEFT - 8, y(value));
    }
    context.textAlign = "right";
    context.fillText("FLOP per byte", width - 4, height - 7);
    context.textAlign = "left";
    context.fillText("TFLOPS", 0, 8);
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT, height - BOTTOM);
    context.clip();
    for (const [name, peak] of used) {
      const bend = peak / told.bandwidth;
      context.strokeStyle = colour("ink");
      context.lineWidth = 1.5;
      context.beginPath();
      context.moveTo(x(left), y(left * told.bandwidth));
      context.lineTo(x(bend), y(peak));
      context.lineTo(x(right), y(peak));
      context.stroke();
      context.fillStyle = colour("ink");
      context.textAlign = "right";
      context.fillText(`${name}, ${short(peak / 1e12)} TFLOPS`, width - 14, y(peak) - 9);
    }
    context.textAlign = "left";
    context.fillText(`memory, ${short(told.bandwidth / 1e9)} GB/s`, x(left) + 8, y(left * told.bandwidth) + 14);
    for (const point of largestFirst) {
      const { kernel, intensity, rate } = point;
      const roof = roofOf(point);
      if (roof > rate) {
        context.fillStyle = colour("critical");
        context.globalAlpha = 0.35;
        const wide = Math.max(1, 6 * Math.sqrt((aboveOf(kernel) ?? 0) / longest));
        context.fillRect(x(intensity) - wide / 2, y(roof), wide, y(rate) - y(roof));
      }
      context.globalAlpha = 0.8;
      context.fillStyle = colour(colourOf(kernel));
      context.beginPath();
      context.arc(x(intensity), y(rate), radius(kernel), 0, 2 * Math.PI);
      context.fill();
      context.globalAlpha = 1;
      context.strokeStyle = colour("card");
      context.lineWidth = 1;
      context.stroke();
    }
    context.restore();
  }

  /** @param {(typeof all)[number] | null} point */
  function show(point) {
    if (point === chosen) return;
    chosen = point;
    readout.textContent = point ? said(point.kernel) : hint;
    marker.hidden = !point;
    if (!point) return;
    const { x, y } = at(canvas.clientWidth, canvas.clientHeight);
    const far = radius(point.kernel) + 2;
    marker.style.cssText = `left: ${x(point.intensity) - far}px; top: ${y(point.rate) - far}px; width: ${2 * far}px; height: ${2 * far}px`;
  }
  canvas.tabIndex = 0;
  canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
    const { x, y } = at(canvas.clientWidth, canvas.clientHeight);
    const far = (/** @type {(typeof all)[number]} */ { kernel, intensity, rate }) => Math.hypot(x(intensity) - offsetX, y(rate) - offsetY) - radius(kernel);
    const near = all.reduce((a, b) => (far(b) < far(a) ? b : a));
    show(far(near) < REACH ? near : null);
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = chosen ? largestFirst.indexOf(chosen) + step : 0;
    show(largestFirst[Math.max(0, Math.min(all.length - 1, next))]);
  });
  canvas.addEventListener("blur", () => show(null));
  const open = () => chosen && longestCall(chosen.kernel, shown)?.click();
  canvas.addEventListener("click", open);
  canvas.addEventListener("keydown", ({ key }) => key === "Enter" && open());
  const kinds = [...new Set(all.map(({ kernel }) => kernel.kind))].filter((kind) => COLOURS.has(kind));
  return [
    h("div", { class: "heat-frame" }, canvas, marker),
    h("ul", { class: "legend flush" }, kinds.map((kind) => h("li", {}, h("i", { class: `owner-${COLOURS.get(kind)} shape-0` }), kind))),
    readout,
  ];
}

/**
 * The way to a kernel's longest call in the timeline; null where the traces are not here.
 * @param {Kernel} kernel
 * @param {Shown} shown
 */
export function longestCall({ rank, from_us, to_us }, { views, link }) {
  if (isReport || !views || views.from_digests) return null;
  return link("timeline", { ...span(from_us, to_us), ranks: String(rank) });
}

/** @param {Kernel} kernel */
function said(kernel) {
  const above = aboveOf(kernel);
  const share = shareOf(kernel);
  const parts = [
    `${nameOf(kernel)}${kernel.inputs ? ` of ${kernel.inputs}` : ""}${kernel.dtype ? `, ${kernel.dtype}` : ""}`,
    `${ms(kernel.ms)} a step in ${short(kernel.calls)} calls`,
    rateOf(kernel) + (share === null ? "" : `, ${percent(share)} of attainable`),
    above === null ? "" : `${ms(above)} above attainable`,
    kernel.fits_cache ? "fits in the L2 cache, whose roof is higher" : "",
  ];
  return `${parts.filter(Boolean).join("; ")}.`;
}
