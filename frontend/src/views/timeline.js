// All ranks on one clock around the evidence: a few opened, CPU and GPU, the others folded to a lane each; the critical
// path through them, straggler wait hatched, and beside them what is known of the chosen event.

import { isReport } from "../api.js";
import { card, h } from "../dom.js";
import { ranges } from "../format.js";
import { keysDialog } from "../keys.js";
import { BOXES, affectedRanks } from "../model.js";
import { around, Panel } from "../timeline/panel.js";
import { followPointer } from "../timeline/pointer.js";
import { MOST_OPENED, ranksOf, toOpen } from "../timeline/ranks.js";
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
  ["W / S, + / −", "zoom in / zoom out"],
  ["A / D", "pan left / pan right"],
  ["F", "fit the evidence"],
  ["N / P", "next gap / previous gap of the rank"],
  ["Arrow keys", "previous or next event; row above or below"],
  ["O", "open or fold the rank of the chosen event"],
  ["M", "set or remove a time marker"],
  ["/", "search by name or module; Enter: next hit, Shift-Enter: previous"],
  ["Drag, Shift-drag", "pan; select a range"],
  ["R", "select the range that shows"],
  ["Ctrl-wheel, pinch", "zoom in / zoom out; two fingers pan, too"],
  ["Escape", "clear search, markers and range"],
  ["?", "list of keys"],
];

/** @type {View} */
export const timeline = {
  title: "Timeline",
  fragment: "timeline",
  lacks,
  render,
  table: () => null, // it has one of its own, of what shows
  keys: KEYS,
};

/** @param {Pick<import("../model.js").Report, "views">} report */
function lacks({ views }) {
  if (isReport) return "A report has no traces. Open the log directory in TensorBoard to see the timeline.";
  return views ? "" : "The timeline is not available for this run.";
}

/**
 * @param {HTMLElement} element
 * @param {Shown} shown
 */
function render(element, shown) {
  const { diagnosis, views, place } = shown;
  if (!views || isReport) {
    element.append(card("Timeline", h("p", { class: "note" }, lacks(shown))));
    return;
  }
  const affected = affectedRanks(diagnosis);
  const open = (/** @type {Spot} */ spot) => (views.from_digests ? [] : toOpen(views, spot.ranks, affected));
  const spots = spotsOf(shown);
  const spot = spots.find(({ id }) => id === place.evidence) ?? spots[0];
  const opened = views.from_digests ? [] : (ranksOf(place.ranks, views.ranks, views.nodes) ?? open(spot));
  const panel = new Panel(shown, wholeOf(views.record_ms), spot, opened, spanOf(place) ?? around(spot));
  const help = keysDialog("Keys of the timeline", KEYS);
  const keyed = (/** @type {KeyboardEvent} */ event) => followKey(panel, help, event);

  element.append(
    card(
      "All ranks on one clock",
      h(
        "div",
        { class: "controls" },
        ...choices(panel, spots, views, open),
        h("span", { class: "search" }, h("label", {}, "Search", panel.seek.box), panel.seek.offered, panel.seek.counted, button("‹", "Previous hit", () => panel.choice.next(-1)), button("›", "Next hit", () => panel.choice.next(1))),
        h("span", { class: "gaps" }, button("−", "Zoom out", () => zoom(panel, ZOOM)), button("+", "Zoom in", () => zoom(panel, 1 / ZOOM)), button("Fit", "Fit the evidence", () => panel.fit())),
        h("span", { class: "gaps" }, "Gap", button("P", "Previous gap", () => panel.choice.gap(-1)), button("N", "Next gap", () => panel.choice.gap(1))),
        button("Keys", null, () => help.showModal()),
      ),
      views.from_digests && h("p", { class: "note" }, "Only digests are here, so ranks show as one lane each. Open the log directory with the traces in TensorBoard to see kernels and ops."),
      h(
        "div",
        { class: "timeline-body" },
        h("div", { class: "pictures" }, panel.overview.element, h("div", { class: "timeline-frame" }, panel.canvas, panel.tooltip), panel.paged, legend(), panel.readout, panel.hidden),
        h("div", { class: "beside-picture" }, panel.ruler.selected, panel.choice.docked),
      ),
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
 * @param {string} text
 * @param {string | null} label
 * @param {() => void} click
 */
const button = (text, label, click) => h("button", { type: "button", "aria-label": label, click }, text);

/**
 * What to look at: a piece of evidence, and ranks to open.
 * @param {Panel} panel
 * @param {Spot[]} spots
 * @param {import("../model.js").Views} views
 * @param {(spot: Spot) => number[]} open
 */
function choices(panel, spots, { ranks: all, nodes, from_digests }, open) {
  const ranks = /** @type {HTMLInputElement} */ (
    h("input", {
      value: listed(panel.opened),
      size: 14,
      list: "timeline-nodes",
      placeholder: "0, 4-7, node1",
      title: `Ranks to open: numbers, ranges, names of nodes; at most ${MOST_OPENED}`,
      "aria-label": "Ranks",
      change: () => panel.showRanks(ranksOf(ranks.value, all, nodes) ?? panel.opened),
    })
  );
  panel.changed = (opened) => (ranks.value = listed(opened));
  const evidence = /** @type {HTMLSelectElement} */ (
    h(
      "select",
      {
        change: () => {
          const spot = spots.find(({ id }) => id === evidence.value) ?? spots[0];
          panel.showSpot(spot, open(spot));
        },
      },
      spots.map(({ id, title }) => h("option", { value: id, selected: id === panel.spot.id }, title)),
    )
  );
  const named = h("datalist", { id: "timeline-nodes" }, [...new Set(nodes.filter(Boolean))].map((node) => h("option", { value: node })));
  return [h("label", {}, "Evidence", evidence), ...(from_digests ? [] : [h("label", {}, "Ranks", ranks), named])];
}

/** Ranks as they are opened: in their order where it is that of their numbers. @param {number[]} opened */
const listed = (opened) => (opened.every((rank, i) => !i || rank > opened[i - 1]) ? ranges(opened) : opened.join(", "));

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
  if (onPicture && key.startsWith("Arrow")) return () => panel.choice.walk(key);
  const { span, laid } = panel;
  const chosen = panel.choice.event;
  /** @type {Record<string, () => void>} */
  const actions = {
    w: () => zoom(panel, 1 / ZOOM),
    s: () => zoom(panel, ZOOM),
    "+": () => zoom(panel, 1 / ZOOM),
    "-": () => zoom(panel, ZOOM),
    a: () => panel.show(moved(span, -STEP)),
    d: () => panel.show(moved(span, STEP)),
    f: () => panel.fit(),
    n: () => panel.choice.gap(1),
    p: () => panel.choice.gap(-1),
    o: () => chosen && laid && panel.toggle(laid.rows[chosen.row].rank),
    r: () => panel.ruler.select({ ...span }),
    m: () => panel.mark(),
    "/": () => panel.seek.box.focus(),
    "?": () => (help.open ? help.close() : help.showModal()),
    escape: () => panel.clear(),
  };
  return actions[key.toLowerCase()];
}

/**
 * Around the pointer, where it is on the picture.
 * @param {Panel} panel
 * @param {number} factor
 */
function zoom(panel, factor) {
  const { span, pointed } = panel;
  panel.show(zoomed(span, pointed > span.from && pointed < span.to ? pointed : (span.from + span.to) / 2, factor));
}

function legend() {
  return h(
    "ul",
    { class: "legend flush textured" },
    [...BOXES].map(([owner, name]) => h("li", {}, h("i", { class: `owner-${owner}` }), name)),
    h("li", {}, h("i", { class: "path-line" }), "critical path"),
  );
}
