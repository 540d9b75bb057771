// The device timeline of one step, a lane per rank, all on one clock. Time is ms from the start of the picture.

import { picture } from "./canvas.js";
import { fillOf } from "./chart/textures.js";
import { ms } from "./format.js";

/** @typedef {import("./model.js").Views} Views */
/** @typedef {Views & {lanes: import("./model.js").Lanes}} Drawn */
/** @typedef {import("./model.js").Evidence} Evidence */

/** Room for the names of ranks: at least, and beside the longest. */
const GUTTER = 62;
const NAME_GAP = 10;
const AXIS = 18;

/**
 * The picture in a finding's row: lanes only, pale outside the evidence.
 * @param {Drawn} views
 * @param {Evidence[]} evidence
 */
export function smallLanes(views, evidence) {
  const { lanes, owners } = views;
  const frames = framed(views, evidence);
  return picture("small-lanes", `Timeline of step ${lanes.step}`, (context, width, height, colour) => {
    const x = (/** @type {number} */ at) => ((at - lanes.start_ms) / (lanes.end_ms - lanes.start_ms)) * width;
    const pitch = height / lanes.ranks.length;
    const fills = owners.map((owner) => (owner === "wait" ? fillOf(context, owner, colour) : colour(owner))); // too low for textures
    const all = () =>
      lanes.ranks.forEach((lane, i) =>
        pieces(context, lane.pieces, fills, x, i * pitch, Math.max(1, pitch - 1.5)),
      );
    context.globalAlpha = frames.length ? 0.3 : 1;
    all();
    if (!frames.length) return;
    context.globalAlpha = 1;
    context.beginPath();
    for (const { row, from, to } of frames) context.rect(x(from), row * pitch, Math.max(1.5, x(to) - x(from)), pitch);
    context.clip();
    all();
  });
}

/**
 * The picture in the row of a finding whose evidence lies in other steps: ranks downwards, steps to the right, dark
 * where there is evidence.
 * @param {Views} views
 * @param {Evidence[]} evidence
 */
export function smallSteps({ ranks, steps }, evidence) {
  const at = evidence.map(({ rank, step }) => [ranks.indexOf(rank), steps.indexOf(step)]);
  return picture("small-lanes", "Ranks and steps with evidence", (context, width, height, colour) => {
    const [wide, tall] = [width / steps.length, height / ranks.length];
    const gap = Math.min(wide, tall) > 4 ? 1.5 : 0;
    context.fillStyle = colour("line");
    if (gap) ranks.forEach((_, i) => steps.forEach((_, j) => box(i, j)));
    else context.fillRect(0, 0, width, height);
    context.fillStyle = colour("host");
    for (const [i, j] of at) if (i >= 0 && j >= 0) box(i, j);

    /** @param {number} i @param {number} j */
    function box(i, j) {
      context.fillRect(j * wide, i * tall, Math.max(1.5, wide - gap), Math.max(1.5, tall - gap));
    }
  });
}

/**
 * Where a finding occurs: ranks downwards, steps to the right, in the colour of the owner that its fix removes.
 * @param {Views} views
 * @param {import("./model.js").Finding} finding
 * @param {string} owner "" if unknown
 */
export function rankStepStrip({ ranks, steps }, finding, owner) {
  const [onRanks, onSteps] = [new Set(finding.ranks), new Set(finding.steps)];
  const rows = ranks.flatMap((rank, row) => (onRanks.has(rank) ? [row] : []));
  const columns = steps.flatMap((step, column) => (onSteps.has(step) ? [column] : []));
  const label = `Occurs on ${finding.ranks.length} of ${ranks.length} ranks, in ${finding.steps.length} of ${steps.length} steps`;
  return picture("rank-step", label, (context, width, height, colour) => {
    const [wide, tall] = [width / steps.length, height / ranks.length];
    const gap = (/** @type {number} */ size) => (size > 3 ? 1 : 0);
    const box = (/** @type {number} */ row, /** @type {number} */ column) =>
      context.fillRect(column * wide, row * tall, Math.max(1.5, wide - gap(wide)), Math.max(1.5, tall - gap(tall)));
    context.fillStyle = colour("line");
    if (gap(wide) && gap(tall)) ranks.forEach((_, row) => steps.forEach((_, column) => box(row, column)));
    else context.fillRect(0, 0, width, height);
    context.fillStyle = colour(owner || "soft");
    for (const row of rows) for (const column of columns) box(row, column);
  });
}

/**
 * The picture in an opened finding: named lanes, a time axis, and a frame around each window of evidence.
 * @param {Drawn} views
 * @param {Set<number>} named ranks to name in the colour of the fault
 * @param {Evidence[]} evidence
 */
export function largeLanes(views, named, evidence) {
  const { lanes, owners } = views;
  const span = lanes.end_ms - lanes.start_ms;
  const canvas = picture("large-lanes", `Timeline of step ${lanes.step}, all ranks on one clock`, draw);
  const pitch = lanes.ranks.length > 8 ? 16 : 24;
  canvas.style.height = `${AXIS + pitch * lanes.ranks.length}px`;
  return canvas;

  /** @type {import("./canvas.js").Draw} */
  function draw(context, width, _height, colour) {
    const font = getComputedStyle(document.body).fontFamily;
    context.textBaseline = "middle";
    context.font = `650 12px ${font}`;
    const gutter = Math.max(GUTTER, ...lanes.ranks.map(({ rank }) => context.measureText(`rank ${rank}`).width + NAME_GAP));
    const x = (/** @type {number} */ at) => gutter + ((at - lanes.start_ms) / span) * (width - gutter - 1);
    context.font = `11.5px ${font}`;
    const tick = roundStep(span / Math.max(2, (width - gutter) / 110));
    for (let at = 0; at <= span; at += tick) {
      context.fillStyle = colour("line");
      context.fillRect(x(lanes.start_ms + at), AXIS - 4, 1, pitch * lanes.ranks.length + 4);
      const label = ms(at).replace(".0", "");
      context.fillStyle = colour("soft");
      const room = width - x(lanes.start_ms + at);
      if (room > context.measureText(label).width + 4)
        context.fillText(label, x(lanes.start_ms + at) + 4, AXIS / 2 - 1);
    }
    const fills = owners.map((owner) => fillOf(context, owner, colour));
    lanes.ranks.forEach((lane, i) => {
      const top = AXIS + i * pitch;
      const affected = named.has(lane.rank);
      context.font = `${affected ? "650 " : ""}12px ${font}`;
      context.fillStyle = colour(affected ? "critical" : "ink");
      context.fillText(`rank ${lane.rank}`, 0, top + pitch / 2);
      pieces(context, lane.pieces, fills, x, top + 3, pitch - 6);
    });
    context.strokeStyle = colour("ink");
    context.lineWidth = 1.5;
    context.setLineDash([4, 3]);
    for (const { row, from, to } of framed(views, evidence)) {
      context.strokeRect(x(from), AXIS + row * pitch + 1, Math.max(2, x(to) - x(from)), pitch - 2);
    }
  }
}

/**
 * A window of evidence in ms from the start of its step; null where the step's start is not known.
 * @param {Views} views
 * @param {Evidence} item
 */
export function withinStep(views, item) {
  const start = views.start_ns[views.ranks.indexOf(item.rank)]?.[views.steps.indexOf(item.step)];
  if (start === null || start === undefined) return null;
  return { from: (item.start_ns - start) / 1e6, to: (item.end_ns - start) / 1e6 };
}

/**
 * The windows of evidence that lie in the picture's step: its row, and from when to when on the common clock.
 * @param {Drawn} views
 * @param {Evidence[]} evidence
 */
export function framed(views, evidence) {
  const { lanes } = views;
  return evidence.flatMap((item) => {
    const row = lanes.ranks.findIndex(({ rank }) => rank === item.rank);
    const origin = lanes.ranks[row]?.start_ms;
    const within = withinStep(views, item);
    if (item.step !== lanes.step || !within || origin === undefined) return [];
    return [{ row, from: origin + within.from, to: origin + within.to }];
  });
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {[number, number, number][]} list
 * @param {(string | CanvasPattern)[]} fills by owner
 * @param {(at: number) => number} x
 * @param {number} top
 * @param {number} height
 */
function pieces(context, list, fills, x, top, height) {
  for (const [owner, from, to] of list) {
    context.fillStyle = fills[owner];
    context.fillRect(x(from), top, Math.max(0.6, x(to) - x(from)), height);
  }
}

/**
 * The next 1, 2 or 5 times a power of ten.
 * @param {number} value
 */
function roundStep(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 5].find((factor) => factor * power >= value) ?? 10) * power;
}
