// Size against time of each collective, both logarithmic, with the fit alpha + beta * size, algbw and busbw.
// Groups are compared with groups like them, and nodes with each other.

import { isReport } from "../api.js";
import { picture } from "../canvas.js";
import { axisOf, logTicks, place } from "../chart/log.js";
import { pairsCard } from "../communication/pairs_card.js";
import { detail } from "../detail.js";
import { card, h } from "../dom.js";
import { count, ms, percent, ranges } from "../format.js";
import { grid, plain } from "../grid.js";
import { chosen } from "../nccl.js";
import { span } from "../timeline/place.js";

/** @typedef {import("../views.js").Shown} Shown */
/**
 * @typedef {object} Family the collectives of one kind in one group
 * @property {string} kind
 * @property {string} group
 * @property {string} parallelism what the group is for, as TP; "" if unknown
 * @property {number[]} ranks
 * @property {string[]} nodes
 * @property {number} size ranks of the group
 * @property {number} bus_factor
 * @property {number} calls
 * @property {number | null} mean_bytes null where unknown
 * @property {number} mean_transfer_us
 * @property {number} mean_wait_us
 * @property {number} far outliers: collectives that take far longer than others of their size
 * @property {number} peers groups like it
 * @property {number | null} slowdown times as long as usual in those; null without peers
 * @property {boolean} is_slow from where the rule slow-link says so
 * @property {number | null} alpha_us
 * @property {number | null} us_per_byte
 * @property {boolean} significant whether the line is to be believed
 * @property {number[]} step of each point; of many collectives not all are points
 * @property {number[]} last_us when the last rank arrives, after the first step's start
 * @property {number[]} bytes -1 where unknown
 * @property {number[]} transfer_us
 * @property {number[]} wait_us
 * @property {number[]} outlier
 */
/** @typedef {{name: string, ranks: number[], calls: number, last: number, waited_for_ms: number, waits_ms: number, slowdown: number | null, stands_out: boolean}} Node a step's means; last: share of its calls */

/** Series drawn; each has a colour and a shape of its own. */
const DRAWN = 6;
/** More nodes than this are counted, not named. */
const NAMED_NODES = 3;
const COLOURS = ["transfer", "compute", "input", "dispatch", "alloc", "sync"];
/** So near the pointer is at a point, CSS pixels. */
const REACH = 14;
/** Fitted lines drawn of a series. */
const LINES = 8;
const LEFT = 62;
const BOTTOM = 34;

/** @type {import("../views.js").View} */
export const communication = {
  title: "Communication",
  fragment: "communication",
  render: (element, shown) => detail(element, shown.diagnosis.name, "communication", (told) => drawn(told, shown)),
  table: () => null, // it has some of its own
  keys: [["Arrow keys, Enter", "move over the collectives of the chart, longest first; show one in the timeline"]],
};

/**
 * @param {{families: Family[], nodes: Node[], sent: [number, number, number][]}} told
 * @param {Shown} shown
 */
function drawn({ families, nodes, sent }, shown) {
  if (!families.length) {
    return [card("Time by size", h("p", { class: "note" }, "No collective was matched between ranks, so there is nothing to measure.")), pairsCard([], sent, shown.diagnosis, kindOf)];
  }
  const series = seriesOf(families.filter(({ bytes, transfer_us }) => bytes.some((size, i) => size > 0 && transfer_us[i] > 0)));
  return [
    series.length ? card("Time by size", ...chart(series.slice(0, DRAWN), series.length, shown)) : null,
    card("By kind and group", summary(families, shown)),
    pairsCard(families, sent, shown.diagnosis, kindOf),
    nodes.length ? card("By node", ...byNode(nodes, shown)) : null,
    card("Each collective", shown.place.step ? h("p", { class: "note" }, `Of the selected step ${shown.place.step}.`) : null, calls(families, shown)),
  ];
}

const kindOf = (/** @type {Pick<Family, "kind" | "group" | "parallelism">} */ { kind, group, parallelism }) => `${kind || "unknown"}${group || parallelism ? ` in ${[parallelism, "group", group].filter(Boolean).join(" ")}` : ""}`;
/** @param {string[]} nodes */
const named = (nodes) => (nodes.length > NAMED_NODES ? count(nodes.length, "node") : nodes.join(", "));
/** @param {Family} family */
const nameOf = (family) => `${kindOf(family)}, ${count(family.ranks.length, "rank")}${family.nodes.length > 1 ? ` on ${count(family.nodes.length, "node")}` : ""}`;
const times = (/** @type {number} */ value) => `${value.toFixed(2)}×`;

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

const size = (/** @type {number} */ bytes) =>
  bytes >= 1e9 ? `${trim(bytes / 1e9)}\u00a0GB` : bytes >= 1e6 ? `${trim(bytes / 1e6)}\u00a0MB` : bytes >= 1e3 ? `${trim(bytes / 1e3)}\u00a0kB` : `${bytes}\u00a0B`;
const trim = (/** @type {number} */ value) => value.toFixed(value < 10 ? 1 : 0).replace(/\.0$/, "");
const time = (/** @type {number} */ us) => ms(us / 1000);
const short = (/** @type {number} */ us) => time(us).replace(/\.0(?=\D)/, "");
const rate = (/** @type {number} */ gbs) => `${gbs.toFixed(gbs < 10 ? 2 : 0)}\u00a0GB/s`;

/**
 * @param {Family[][]} series
 * @param {number} all
 * @param {Shown} shown
 */
function chart(series, all, shown) {
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

const perStep = (/** @type {number} */ value) => value.toLocaleString("en", { maximumFractionDigits: 1 });

/**
 * @param {Family[]} families
 * @param {Shown} shown
 */
function summary(families, shown) {
  const compared = families.some(({ slowdown }) => slowdown !== null);
  /** @type {[import("../grid.js").Column, (family: Family) => import("../grid.js").Value][]} */
  const columns = [
    [{ head: "collective" }, kindOf],
    [{ head: "ranks" }, ({ ranks: some }) => ranges(some)],
    [{ head: "nodes", title: "how many its ranks are on" }, ({ nodes }) => nodes.length],
    [{ head: "calls", show: perStep, title: "per step" }, ({ calls }) => calls / Math.max(1, shown.diagnosis.steps.length)],
    [{ head: "size", show: size, title: "bytes of one call, mean" }, ({ mean_bytes }) => mean_bytes],
    [{ head: "straggler wait", show: time, title: "of one call, mean over its ranks" }, ({ mean_wait_us }) => mean_wait_us],
    [{ head: "time", show: time, bar: true, title: "of one call without straggler wait, mean" }, ({ mean_transfer_us }) => mean_transfer_us],
    [
      { head: "algbw, GB/s", show: plain, title: "size / time, as in nccl-tests" },
      ({ mean_bytes, mean_transfer_us }) => (mean_bytes && mean_transfer_us > 0 ? mean_bytes / mean_transfer_us / 1e3 : null),
    ],
    [
      { head: "busbw, GB/s", show: plain, title: "algbw × the factor of nccl-tests" },
      ({ mean_bytes, mean_transfer_us, bus_factor }) => (mean_bytes && mean_transfer_us > 0 ? (mean_bytes / mean_transfer_us / 1e3) * bus_factor : null),
    ],
    [{ head: "latency", show: time, title: "of the fit: the time at size 0 (alpha)" }, ({ significant, alpha_us }) => (significant ? alpha_us : null)],
    [
      { head: "busbw at large size, GB/s", show: plain, title: "from 1 / beta of the fit; only where sizes differ enough for a fit" },
      ({ significant, us_per_byte, bus_factor }) => (significant && us_per_byte ? (bus_factor / us_per_byte) * 1e-3 : null),
    ],
    [{ head: "outliers", title: "calls that take much longer than others of their size" }, ({ far }) => far],
  ];
  const { network } = shown.diagnosis;
  if (network?.choices.length) {
    columns.push([{ head: "NCCL chose", title: "algorithm, protocol and channels, by NCCL's log" }, (family) => chosen(network, family)]);
  }
  if (compared) {
    const title = "time without straggler wait over the median of comparable groups, at the same size";
    columns.push([{ head: "vs comparable groups", show: times, title }, ({ slowdown }) => slowdown]);
  }
  const rows = families.map((family) => columns.map(([, value]) => value(family)));
  const slow = new Set(rows.filter((_, i) => families[i].is_slow));
  return grid({
    title: "communication",
    shown,
    sort: 6,
    marked: (row) => slow.has(row),
    columns: columns.map(([column]) => column),
    rows,
  });
}

/**
 * @param {Node[]} nodes
 * @param {Shown} shown
 */
function byNode(nodes, shown) {
  const compared = nodes.some(({ slowdown }) => slowdown !== null);
  const out = nodes.filter(({ stands_out }) => stands_out).map(({ name }) => name);
  const names = new Set(out);
  return [
    h(
      "p",
      { class: "note" },
      out.length
        ? `${named(out)} ${out.length === 1 ? "stands" : "stand"} out: other nodes wait longer for it than for the rest, or its communication without wait is slower than that of comparable groups.`
        : "No node stands out: straggler wait and communication without wait are comparable on all nodes.",
    ),
    grid({
      title: "nodes",
      shown,
      search: "Filter",
      sort: 4,
      marked: ([name]) => names.has(String(name)),
      columns: [
        { head: "node" },
        { head: "ranks" },
        { head: "calls", show: perStep, title: "collectives per step that its ranks take part in" },
        { head: "arrives last", show: percent, title: "share of its collectives in which other nodes wait for one of its ranks" },
        { head: "wait caused", unit: "ms", show: ms, bar: true, title: "straggler wait of the other nodes for this one, per step, mean over their ranks" },
        { head: "straggler wait", unit: "ms", show: ms, bar: true, title: "per step, mean over its ranks" },
        ...(compared ? [{ head: "vs comparable groups", show: times, title: "time without straggler wait over the median of comparable groups" }] : []),
      ],
      rows: nodes.map(({ name, ranks: some, calls, last, waited_for_ms, waits_ms, slowdown }) => [
        name,
        ranges(some),
        calls,
        last,
        waited_for_ms,
        waits_ms,
        ...(compared ? [slowdown] : []),
      ]),
    }),
  ];
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
    sort: 5,
    columns: [
      { head: "collective" },
      { head: "nodes" },
      { head: "step" },
      { head: "size", show: size },
      { head: "straggler wait", show: time, title: "mean over its ranks" },
      { head: "time", show: time, bar: true, title: "without straggler wait" },
      { head: "busbw, GB/s", show: plain },
      { head: "outlier" },
    ],
    rows: families.flatMap((family) =>
      family.transfer_us.flatMap((us, i) => (shown.place.step && String(family.step[i]) !== shown.place.step ? [] : [[
        kindOf(family),
        named(family.nodes),
        family.step[i],
        family.bytes[i] > 0 ? family.bytes[i] : null,
        family.wait_us[i],
        us,
        family.bytes[i] > 0 && us > 0 ? (family.bytes[i] / us / 1e3) * family.bus_factor : null,
        family.outlier[i] ? "outlier" : "",
      ]])),
    ),
  });
}
