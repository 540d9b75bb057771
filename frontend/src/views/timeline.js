// All ranks on one clock around the evidence: CPU and GPU, collectives joined across ranks, straggler wait hatched.

import { card, h } from "../dom.js";
import { ranges } from "../format.js";
import { keysDialog } from "../keys.js";
import { BOXES } from "../model.js";
import { around, Panel } from "../timeline/panel.js";
import { followPointer } from "../timeline/pointer.js";
import { ranksOf } from "../timeline/rows.js";
import { moved, wholeOf, zoomed } from "../timeline/scale.js";
import { spanOf, spotsOf } from "../timeline/spots.js";

/** @typedef {import("../views.js").View} View */
/** @typedef {import("../views.js").Shown} Shown */
/** @typedef {import("../timeline/spots.js").Spot} Spot */

/** A key zooms by this factor, and pans by this share of the span. */
const ZOOM = 1.4;
const STEP = 0.2;

/** @type {[string, string][]} */
const KEYS = [
  ["W / S", "zoom in / zoom out"],
  ["A / D", "pan left / pan right"],
  ["F", "fit the evidence"],
  ["Arrow keys", "previous or next event; row above or below"],
  ["M", "set or remove a time marker"],
  ["/", "search by name; Enter: next hit"],
  ["Drag, Shift-drag", "pan; measure"],
  ["Ctrl-wheel", "zoom in / zoom out"],
  ["Escape", "clear search, markers and measurement"],
  ["?", "list of keys"],
];

/** @type {View} */
export const timeline = {
  title: "Timeline",
  fragment: "timeline",
  render,
  table: () => null, // it has one of its own, of what shows
  keys: KEYS,
};

/**
 * @param {HTMLElement} element
 * @param {Shown} shown
 */
function render(element, shown) {
  const { views, place } = shown;
  if (!views || views.from_digests) {
    const reason = "The traces are not available here, only digests. Open the log directory with the traces in TensorBoard to see the timeline.";
    element.append(card("Timeline", h("p", { class: "note" }, reason)));
    return;
  }
  const spots = spotsOf(shown);
  const spot = spots.find(({ id }) => id === place.evidence) ?? spots[0];
  const ranks = ranksOf(place.ranks, views.ranks) ?? spot.ranks;
  const panel = new Panel(shown, views.origin_ns, wholeOf(views.clock_ms, views.step_ms), spot, ranks, spanOf(place) ?? around(spot));
  const help = keysDialog("Keys of the timeline", KEYS);
  const keyed = (/** @type {KeyboardEvent} */ event) => followKey(panel, help, event);

  element.append(
    card(
      "All ranks on one clock",
      h(
        "div",
        { class: "controls" },
        ...choices(panel, spots, views.ranks),
        h("label", {}, "Search", panel.sought),
        h("button", { type: "button", click: () => panel.fit() }, "Fit the evidence"),
        h("button", { type: "button", click: () => help.showModal() }, "Keys"),
      ),
      panel.canvas,
      legend(),
      panel.readout,
      panel.hidden,
      panel.listed,
      help,
    ),
  );
  followPointer(panel);
  document.addEventListener("keydown", keyed);
  panel.load();
  return () => {
    panel.leave();
    document.removeEventListener("keydown", keyed);
  };
}

/**
 * What to look at: a piece of evidence, and ranks.
 * @param {Panel} panel
 * @param {Spot[]} spots
 * @param {number[]} all ranks of the run
 */
function choices(panel, spots, all) {
  const ranks = /** @type {HTMLInputElement} */ (
    h("input", {
      value: ranges(panel.ranks),
      size: 12,
      "aria-label": "Ranks",
      change: () => {
        panel.showRanks(ranksOf(ranks.value, all) ?? panel.ranks);
        ranks.value = ranges(panel.ranks);
      },
    })
  );
  const evidence = /** @type {HTMLSelectElement} */ (
    h(
      "select",
      {
        change: () => {
          panel.showSpot(spots.find(({ id }) => id === evidence.value) ?? spots[0]);
          ranks.value = ranges(panel.ranks);
        },
      },
      spots.map(({ id, title }) => h("option", { value: id, selected: id === panel.spot.id }, title)),
    )
  );
  return [h("label", {}, "Evidence", evidence), h("label", {}, "Ranks", ranks)];
}

/**
 * A key anywhere on the page; arrows are the picture's.
 * @param {Panel} panel
 * @param {HTMLDialogElement} help
 * @param {KeyboardEvent} event
 */
function followKey(panel, help, event) {
  const { key } = event;
  const target = /** @type {HTMLElement} */ (event.target);
  if ((help.open && key !== "?") || event.ctrlKey || event.metaKey || event.altKey || target.matches("input, select, textarea")) return;
  const action = actionOf(panel, help, target === panel.canvas, key);
  if (!action) return;
  action();
  event.preventDefault();
}

/**
 * @param {Panel} panel
 * @param {HTMLDialogElement} help
 * @param {boolean} onPicture
 * @param {string} key
 * @returns {(() => void) | undefined}
 */
function actionOf(panel, help, onPicture, key) {
  if (onPicture && key.startsWith("Arrow")) return () => panel.walk(key);
  const { span, pointed } = panel;
  const centre = pointed > span.from && pointed < span.to ? pointed : (span.from + span.to) / 2;
  /** @type {Record<string, () => void>} */
  const actions = {
    w: () => panel.show(zoomed(span, centre, 1 / ZOOM)),
    s: () => panel.show(zoomed(span, centre, ZOOM)),
    a: () => panel.show(moved(span, -STEP)),
    d: () => panel.show(moved(span, STEP)),
    f: () => panel.fit(),
    m: () => panel.mark(),
    "/": () => panel.sought.focus(),
    "?": () => (help.open ? help.close() : help.showModal()),
    escape: () => panel.clear(),
  };
  return actions[key.toLowerCase()];
}

function legend() {
  return h(
    "ul",
    { class: "legend flush" },
    [...BOXES].map(([owner, name]) => h("li", {}, h("i", { class: `owner-${owner}` }), name)),
  );
}
