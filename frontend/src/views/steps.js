// Time per rank and step, so that a slow rank that moves from step to step is seen. Few values are a table of
// coloured numbers, many a picture.

import { isReport } from "../api.js";
import { card, h } from "../dom.js";
import { among, ms } from "../format.js";
import { LEFT, heatMap } from "../ranks/heat_map.js";
import { lines } from "../ranks/lines.js";
import { slowest } from "../ranks/per_step.js";
import { present as valuesOf, shading } from "../heat.js";
import { affectedRanks, hasGpu, lacksViews, whenOf } from "../model.js";
import { OWNERS } from "../step_parts.js";
import { ofStep } from "../timeline/place.js";
import { quantityOf, tip } from "../tips.js";

/** @typedef {import("../views.js").View} View */
/** @typedef {import("../views.js").Shown} Shown */
/** @typedef {import("../model.js").Views} Views */
/** @typedef {import("../model.js").Grid} Grid */

const FEW_RANKS = 16;
const FEW_STEPS = 8;

/** @type {{id: string, button: string, says: string, of: (views: Views) => Grid}[]} */
const KINDS = [
  { id: "busy", button: "Busy time", says: "Step minus straggler wait.", of: ({ busy_ms }) => busy_ms },
  {
    id: "wait",
    button: "Straggler wait",
    says: "Time in communication until the last rank arrives: short on the straggler, long on the ranks that wait for it.",
    of: ({ budget_ms, busy_ms }) => budget_ms?.wait ?? busy_ms.map((row) => row.map(() => null)),
  },
  { id: "step", button: "Step time", says: "The whole step, straggler wait included.", of: ({ step_ms }) => step_ms },
];

/** @type {View} */
export const steps = {
  title: "Steps",
  fragment: "steps",
  lacks: lacksViews,
  render,
  table({ views }) {
    if (!views) return null;
    return () => ({
      heads: ["rank", "node", "step", ...KINDS.map(({ button }) => `${button.toLowerCase()}, ms`)],
      rows: views.ranks.flatMap((rank, i) =>
        views.steps.map((step, j) => [
          `rank ${rank}`,
          views.nodes[i],
          step,
          ...KINDS.map(({ of }) => of(views)[i]?.[j] ?? null),
        ]),
      ),
    });
  },
  keys: [["Arrow keys, Enter", "move over the ranks and steps of the picture; open one in the timeline"]],
};

/**
 * @param {HTMLElement} element
 * @param {Shown} shown
 */
function render(element, shown) {
  const { diagnosis, views, place, keep } = shown;
  if (!views) {
    element.append(h("p", { class: "note" }, lacksViews(shown)));
    return;
  }
  const affected = affectedRanks(diagnosis);
  const body = h("div");
  const kinds = kindsOf(diagnosis, place.owner);
  const buttons = kinds.map((kind) => h("button", { type: "button", click: () => choose(kind, true) }, kind.button));
  const note = h("p", { class: "note" });
  const choose = (/** @type {typeof KINDS[0]} */ kind, kept = false) => {
    buttons.forEach((button, j) => button.setAttribute("aria-pressed", String(kind === kinds[j])));
    const quantity = quantityOf(kind.button.toLowerCase()) || quantityOf(kind.button);
    note.replaceChildren(kind.says, ...(quantity ? [" ", tip(quantity)] : []));
    body.dataset.quantity = quantity;
    body.replaceChildren(...present(heat(shown, views, kind.of(views), affected, kind.id === "busy")));
    if (kept) keep({ of: kind.id });
  };
  choose(kinds.find(({ id }) => id === place.of) ?? kinds.find(({ id }) => id === place.owner) ?? kinds[0]);
  element.append(
    card(
      "Time per rank and step",
      h("div", { class: "switch", role: "group", "aria-label": "Time shown" }, buttons),
      note,
      h("p", { class: "moving" }, moving(views, diagnosis.ranks)),
      body,
    ),
  );
}

/**
 * The times to choose among: the selected owner's too.
 * @param {import("../model.js").Diagnosis} diagnosis
 * @param {string} [owner]
 */
function kindsOf(diagnosis, owner) {
  const part = owner && !KINDS.some(({ id }) => id === owner) ? OWNERS.get(owner) : undefined;
  if (!owner || !part) return KINDS;
  return [...KINDS, { id: owner, button: part.name, says: whenOf(part, hasGpu(diagnosis)), of: (/** @type {Views} */ { budget_ms, busy_ms }) => budget_ms[owner] ?? busy_ms }];
}

/** @param {(Node | null)[]} parts */
const present = (parts) => parts.filter((part) => part !== null);

/**
 * Who is slowest from step to step, in words.
 * @param {Views} views
 * @param {readonly number[]} all
 */
function moving(views, all) {
  const rows = slowest(views.busy_ms);
  const ranks = rows.flatMap((row) => (row === null ? [] : [views.ranks[row]]));
  const who = [...new Set(ranks)].sort((a, b) => a - b);
  if (!who.length) return "No rank's busy time is 10 % above the median rank's in any step.";
  const often = `in ${ranks.length} of ${rows.length} steps`;
  if (who.length === 1) return `Rank ${who[0]} has the longest busy time ${often}.`;
  const named = who.length > 12 ? `${who.length} different ranks` : among(who, all, "rank");
  return `The slowest rank changes from step to step: ${named}, ${often}.`;
}

/**
 * The way from a cell to its step and rank in the timeline, both selected; null where that place is not known.
 * @param {Shown} shown
 * @param {number} row
 * @param {number} column
 */
function toTimeline({ views, link }, row, column) {
  const place = views && !isReport && ofStep(views, views.ranks[row], views.steps[column]);
  return place ? link("timeline", { ...place, rank: String(views.ranks[row]), step: String(views.steps[column]) }) : null;
}

/**
 * @param {Shown} shown
 * @param {Views} views
 * @param {Grid} grid
 * @param {Set<number>} affected
 * @param {boolean} ranked whether to frame the slowest rank of each step
 */
function heat(shown, views, grid, affected, ranked) {
  const values = valuesOf(grid);
  if (!values.length) return [h("p", { class: "note" }, "No rank recorded a whole step.")];
  const shade = shading(values);
  const key = h(
    "p",
    { class: "key" },
    `median ${ms(shade.median)}`,
    h("i", { class: "ramp" }),
    `${ms(shade.full)}${shade.full > shade.longest ? " (1.5 × median)" : ", longest"}`,
    ranked && h("span", { class: "framed" }, "slowest rank of the step, 10 % or more above the median rank"),
  );
  const few = views.ranks.length <= FEW_RANKS && views.steps.length <= FEW_STEPS;
  const last = ranked ? slowest(grid) : [];
  if (few) return [cells(shown, views, grid, affected, shade, last), key];
  const go = isReport ? null : (/** @type {number} */ row, /** @type {number} */ column) => toTimeline(shown, row, column)?.click();
  const { frame, readout } = heatMap({ views, grid, affected, shade: shade.of, slowest: last, go });
  return [views.steps.length > 1 ? lines(grid, LEFT) : null, frame, key, readout];
}

/** @typedef {ReturnType<typeof shading>} Shade */

/**
 * @param {Shown} shown
 * @param {Views} views
 * @param {Grid} grid
 * @param {Set<number>} affected
 * @param {Shade} shade
 * @param {(number | null)[]} last the slowest row of each step
 */
function cells(shown, views, grid, affected, shade, last) {
  const cell = (/** @type {number | null} */ value, /** @type {boolean} */ slow, /** @type {number} */ row, /** @type {number} */ column) => {
    if (value === null) return h("td", { class: "none" }, "–");
    const way = toTimeline(shown, row, column);
    if (way) {
      way.textContent = ms(value);
      way.setAttribute("aria-label", `rank ${views.ranks[row]}, step ${views.steps[column]}: ${ms(value)}, open in timeline`);
    }
    return h(
          "td",
          {
            class: [ink(shade.of(value)), slow && "slowest"].filter(Boolean).join(" "),
            style: `--heat: ${10 + 90 * shade.of(value)}%`,
          },
          way ?? ms(value),
        );
  };
  return h(
    "table",
    { class: "heat" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("td"),
        views.steps.map((step) => h("th", { scope: "col" }, `step ${step}`)),
      ),
    ),
    h(
      "tbody",
      {},
      views.ranks.map((rank, i) =>
        h(
          "tr",
          {},
          h("th", { scope: "row", class: affected.has(rank) ? "affected" : null }, `rank ${rank}`),
          grid[i].map((value, j) => cell(value, last[j] === i, i, j)),
        ),
      ),
    ),
  );
}

/** The ink that can be read on a shade. */
const ink = (/** @type {number} */ share) => (share > 0.93 ? "full" : share > 0.6 ? "strong" : null);
