// Where each rank's step goes: one bar per rank, cut into owners that sum to the step.

import { card, folded, h, table } from "./dom.js";
import { ms, percent } from "./format.js";
import { OWNERS, guilty, largest, ownerName } from "./model.js";

/** @typedef {import("./model.js").Report} Report */
/** @typedef {{rank: number, node: string, total: number, parts: [string, number][]}} Row */

/** More bars than this are noise: the accused and those with the longest own time stand for the rest. */
const MOST = 64;
/** A part narrower than this share of the bar has no room for its number. */
const LABELLED = 0.05;

/** @param {Report} report */
export function budget({ diagnosis, views }) {
  const rows = diagnosis.ranks.map((rank, i) => {
    const owners = diagnosis.budget_ms[rank] ?? {};
    const parts = [...OWNERS.keys()].map((owner) => /** @type {[string, number]} */ ([owner, owners[owner] ?? 0]));
    return { rank, node: views?.nodes[i] ?? "", parts, total: parts.reduce((sum, [, value]) => sum + value, 0) };
  });
  const accused = guilty(diagnosis);
  const own = rows.map(({ total, parts }) => total - (parts.find(([owner]) => owner === "wait")?.[1] ?? 0));
  const shown = largest(own, (i) => accused.has(rows[i].rank), MOST).map((i) => rows[i]);
  const longest = Math.max(...rows.map(({ total }) => total));
  const used = [...OWNERS].filter(([owner]) =>
    shown.some(({ parts, total }) => parts.some(([name, value]) => name === owner && value > total / 1000)),
  );
  const readout = h("p", { class: "readout", "aria-live": "polite" });
  const hint = "Mean over the steps. Point at a bar, or move with the arrow keys, for exact values.";
  readout.textContent = hint;
  const bars = h(
    "div",
    { class: `bars${shown.length > 24 ? " many" : ""}`, role: "group", "aria-label": "Budget of each rank" },
    shown.map((row, i) => bar(row, longest, accused.has(row.rank), i === 0)),
  );
  const show = (/** @type {Event} */ event) => {
    const part = /** @type {HTMLElement} */ (event.target).closest(".part");
    readout.textContent = part ? part.getAttribute("aria-label") : hint;
  };
  bars.addEventListener("pointerover", show);
  bars.addEventListener("pointerleave", () => (readout.textContent = hint));
  bars.addEventListener("focusin", show);
  bars.addEventListener("keydown", move);
  return card(
    "Where each rank's step goes",
    shown.length < rows.length &&
      h(
        "p",
        { class: "note" },
        `${shown.length} of ${rows.length} ranks: ${accused.size ? "the accused and " : ""}those with the longest own time.`,
      ),
    bars,
    h(
      "ul",
      { class: "legend" },
      used.map(([owner, { name, when }]) =>
        h("li", { title: `${name}: ${when}` }, h("i", { class: `owner-${owner}` }), name),
      ),
    ),
    readout,
    folded("The same numbers as a table", () => numbers(rows)),
  );
}

/**
 * @param {Row} row
 * @param {number} longest ms, the length of a whole track
 * @param {boolean} accused
 * @param {boolean} first
 */
function bar({ rank, node, total, parts }, longest, accused, first) {
  const visible = parts.filter(([, value]) => value > 0);
  return h(
    "div",
    { class: `row${accused ? " accused" : ""}` },
    h(
      "span",
      { class: "rank", title: node && `on ${node}` },
      `rank ${rank}`,
      accused ? h("span", { "aria-label": "accused" }, " ◀") : null,
    ),
    h(
      "div",
      { class: "bar", style: `width: ${(100 * total) / longest}%` },
      visible.map(([owner, value], i) =>
        h(
          "span",
          {
            class: `part owner-${owner}`,
            style: `flex: ${value} 1 0`,
            role: "img",
            tabindex: first && i === 0 ? 0 : -1,
            "aria-label": `rank ${rank}${node && ` on ${node}`}: ${ownerName(owner)} ${ms(value)}, ${percent(value / total)} of ${ms(total)}`,
          },
          value > longest * LABELLED ? h("span", {}, value.toFixed(1)) : null,
        ),
      ),
    ),
    h("span", { class: "total" }, ms(total)),
  );
}

/** @param {KeyboardEvent} event */
function move(event) {
  const here = /** @type {HTMLElement} */ (event.target);
  const row = here.closest(".row");
  if (!row) return;
  const beside = (/** @type {Element | null | undefined} */ other) => {
    const column = [...row.querySelectorAll(".part")].indexOf(here);
    const parts = other?.querySelectorAll(".part") ?? [];
    return parts[Math.min(column, parts.length - 1)];
  };
  /** @type {Record<string, () => Element | null>} */
  const steps = {
    ArrowLeft: () => here.previousElementSibling,
    ArrowRight: () => here.nextElementSibling,
    ArrowUp: () => beside(row.previousElementSibling),
    ArrowDown: () => beside(row.nextElementSibling),
  };
  const next = steps[event.key]?.();
  if (!(next instanceof HTMLElement)) return;
  event.preventDefault();
  here.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

/** @param {Row[]} rows */
function numbers(rows) {
  return table(
    ["rank", ...[...OWNERS.values()].map(({ name }) => name), "step"],
    rows.map(({ rank, parts, total }) => [`rank ${rank}`, ...parts.map(([, value]) => ms(value)), ms(total)]),
  );
}
