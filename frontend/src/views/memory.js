// What memory is made of and what would save some; and over time, as each rank's caching allocator has it: reserved, and
// allocated by category.

import { picture } from "../canvas.js";
import { detail } from "../detail.js";
import { card, copyable, folded, h } from "../dom.js";
import { filled } from "../findings/advice.js";
import { count, ms } from "../format.js";
import { colourOf, contents, size, snapshots } from "../memory/contents.js";
import { byRank } from "../memory/ranks.js";
import { savings } from "../memory/savings.js";
import { MEMORY } from "../step_parts.js";
import { numbers } from "../table.js";
import { ticks } from "../timeline/scale.js";

/** @typedef {import("../views.js").Shown} Shown */
/** @typedef {{rank: number, node: string, device_bytes: number, time_ms: number[], allocated: number[], reserved: number[], categories: number[][]}} Curve */

const GB = 1e9;
const PANELS = 8;
/** Room for the axes of bytes and of time, CSS pixels. */
const [LEFT, BOTTOM] = [52, 16];

/** @type {import("../views.js").View} */
export const memory = {
  title: "Memory",
  fragment: "memory",
  lacks: ({ diagnosis }) => (diagnosis.memory || diagnosis.memory_snapshots?.length ? "" : `Not checked: ${lacked(diagnosis.setting)}.`),
  render: (element, shown) => detail(element, shown.diagnosis.name, "memory", (told) => drawn(told, shown)),
  table: () => null, // it has one of its own
  keys: [["Arrow keys", "move along a curve, from its peak"]],
};

/**
 * @param {{ranks_told: number, curves: Curve[]}} told
 * @param {Shown} shown
 */
function drawn({ ranks_told, curves }, shown) {
  const told = shown.diagnosis.memory ?? null;
  const beside = snapshots(shown.diagnosis.memory_snapshots ?? []);
  if (!curves.length) return [absent(shown.diagnosis), ...(beside ? [beside] : [])];
  const most = Math.max(...curves.map(({ reserved }) => Math.max(...reserved)));
  const span = { from: Math.min(...curves.map(({ time_ms }) => time_ms[0])), to: Math.max(...curves.map(({ time_ms }) => time_ms[time_ms.length - 1])) };
  const fullest = [...curves].sort((a, b) => Math.max(...b.reserved) - Math.max(...a.reserved)).slice(0, PANELS);
  fullest.sort((a, b) => a.rank - b.rank);
  const drawn = [...MEMORY].filter((_, kind) => fullest.some(({ categories }) => categories[kind]?.some((bytes) => bytes > 0)));
  return [
    ...(told ? contents(told, shown) : []),
    told && savings(told),
    beside,
    card(
      "Memory over time",
      h(
        "ul",
        { class: "legend flush" },
        h("li", {}, h("i", { class: "reserved" }), "reserved by the caching allocator"),
        drawn.map(([, { name, when, colour }]) => h("li", { title: when }, h("i", { class: `owner-${colour}` }), name)),
      ),
      fullest.length < ranks_told && h("p", { class: "note" }, `${fullest.length} of ${count(ranks_told, "rank")}: those with the most reserved.`),
      ...fullest.map((curve) => panel(curve, span, most)),
      folded("The same numbers as a table", () => numbers({ title: "memory over time" }, points(fullest))),
    ),
    card("Ranks at their peaks", byRank(told, curves, shown)),
  ].filter((part) => part !== null);
}

/** @param {import("../../schema.js").Setting} setting */
const lacked = ({ recorder }) => (recorder === "nsys" ? "Nsight Systems does not record the allocator's events" : "the traces have no memory events");

/** How SGLang records its memory, and how vLLM does. */
const OF_SERVERS = `# SGLang: snapshots of torch.cuda.memory
curl -X POST http://localhost:30000/start_profile -d '{"num_steps": 10, "activities": ["MEM"]}'
# vLLM
vllm serve ... --profiler-config '{"profiler": "torch", "torch_profiler_with_memory": true, ...}'`;

/** @param {import("../model.js").Diagnosis} diagnosis */
function absent({ setting, kind }) {
  const record = kind === "inference server" ? OF_SERVERS : "torch.profiler.profile(\n    ...,\n    profile_memory=True,\n)";
  return card(
    "Memory over time",
    h("p", { class: "note" }, `Not checked: ${lacked(setting)}. ${setting.recorder === "nsys" ? "Trace some steps with:" : "Record with:"}`),
    copyable(setting.has_doctor ? filled("ddp-doctor capture LOGDIR --memory", setting.logdir) : record),
  );
}

/**
 * @param {Curve} curve
 * @param {import("../timeline/scale.js").Span} span ms
 * @param {number} most bytes
 */
function panel(curve, span, most) {
  const peak = curve.allocated.indexOf(Math.max(...curve.allocated));
  /** Where it is read out. */
  let index = peak;
  const readout = h("span", { class: "soft", role: "status" }, said(curve, peak, "at its peak"));
  const canvas = picture("memory-canvas", `Memory of rank ${curve.rank}`, (context, width, height, colour) => {
    draw(context, width, height, colour, curve, span, most);
  });
  const marker = h("div", { class: "heat-cursor", hidden: true });
  canvas.tabIndex = 0;
  /** @param {number} to */
  function show(to) {
    index = Math.max(0, Math.min(curve.time_ms.length - 1, to));
    readout.textContent = said(curve, index, `at ${ms(curve.time_ms[index])}`);
    const share = (curve.time_ms[index] - span.from) / (span.to - span.from);
    marker.hidden = false;
    marker.style.cssText = `left: ${LEFT + share * (canvas.clientWidth - LEFT)}px; top: 0; width: 0; height: ${canvas.clientHeight - BOTTOM}px`;
  }
  canvas.addEventListener("pointermove", ({ offsetX }) => {
    const at = span.from + ((offsetX - LEFT) / (canvas.clientWidth - LEFT)) * (span.to - span.from);
    const after = curve.time_ms.findIndex((time) => time > at);
    show((after < 0 ? curve.time_ms.length : after) - 1);
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show(index + step);
  });
  return h(
    "figure",
    { class: "memory" },
    h("figcaption", {}, h("b", {}, `rank ${curve.rank}`), curve.node && ` on ${curve.node}`, ": ", readout),
    h("div", { class: "heat-frame" }, canvas, marker),
  );
}

/**
 * @param {Curve} curve
 * @param {number} index
 * @param {string} when
 */
const said = ({ allocated, reserved }, index, when) => `${size(allocated[index])} allocated, ${size(reserved[index])} reserved ${when}`;

/**
 * Steps: a value is valid until the next one.
 * @param {CanvasRenderingContext2D} context
 * @param {number} width
 * @param {number} height
 * @param {(name: string) => string} colour
 * @param {Curve} curve
 * @param {import("../timeline/scale.js").Span} span
 * @param {number} most
 */
function draw(context, width, height, colour, { time_ms, allocated, reserved, categories }, span, most) {
  const bottom = height - BOTTOM;
  const x = (/** @type {number} */ at) => LEFT + ((at - span.from) / Math.max(span.to - span.from, 1e-9)) * (width - LEFT);
  const y = (/** @type {number} */ bytes) => bottom - (bytes / most) * (bottom - 8);
  const font = getComputedStyle(context.canvas).fontFamily;
  context.font = `11px ${font}`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const bytes of ticks({ from: 0, to: most }, bottom - 8, 32)) {
    context.fillStyle = colour("line");
    context.fillRect(LEFT, Math.round(y(bytes)), width - LEFT, 1);
    context.fillStyle = colour("soft");
    context.fillText(!bytes ? "0" : most >= GB ? `${(bytes / GB).toLocaleString("en")} GB` : `${(bytes / 1e6).toLocaleString("en")} MB`, LEFT - 6, y(bytes));
  }
  context.textAlign = "left";
  for (const at of ticks(span, width - LEFT, 110)) {
    context.fillStyle = colour("line");
    context.fillRect(Math.round(x(at)), 0, 1, bottom);
    context.fillStyle = colour("soft");
    if (x(at) + 50 < width) context.fillText(ms(at).replace(".0", ""), x(at) + 3, height - 7);
  }
  const path = (/** @type {number[]} */ values) => {
    context.beginPath();
    context.moveTo(x(time_ms[0]), bottom);
    values.forEach((bytes, i) => {
      context.lineTo(x(time_ms[i]), y(bytes));
      context.lineTo(i + 1 < values.length ? x(time_ms[i + 1]) : width, y(bytes));
    });
    context.lineTo(width, bottom);
  };
  path(reserved);
  context.fillStyle = colour("reserved");
  context.fill();
  // Each category on top of those before it, so that the last one's edge is what is allocated.
  const kinds = [...MEMORY.keys()];
  let top = allocated;
  for (let kind = categories.length - 1; kind >= 0; kind--) {
    path(top);
    context.fillStyle = colour(colourOf(kinds[kind]));
    context.fill();
    top = top.map((bytes, i) => bytes - categories[kind][i]);
  }
  if (!categories.length) {
    path(allocated);
    context.fillStyle = colour("compute");
    context.fill();
  }
  context.fillStyle = colour("line");
  context.fillRect(LEFT, bottom, width - LEFT, 1);
}

/**
 * @param {Curve[]} curves
 * @returns {import("../views.js").Table}
 */
const points = (curves) => ({
  heads: ["rank", "at, ms", "allocated, GB", "reserved, GB", ...[...MEMORY.values()].map(({ name }) => `${name}, GB`)],
  rows: curves.flatMap(({ rank, time_ms, allocated, reserved, categories }) =>
    time_ms.map((at, i) => [
      `rank ${rank}`,
      at,
      allocated[i] / GB,
      reserved[i] / GB,
      ...[...MEMORY].map((_, kind) => (categories[kind] ? categories[kind][i] / GB : null)),
    ]),
  ),
});
