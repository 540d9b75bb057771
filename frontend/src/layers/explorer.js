// Where in the model a step goes, as boxes below each other: modules, forward and backward, operators, kernels; or kernels
// and their modules. Of the median rank, of one rank, or the difference of two. What is chosen has a panel beside it.

import { card, h } from "../dom.js";
import { count, ms, percent, signed } from "../format.js";
import { PARTS } from "./model.js";
import { panel } from "./panel.js";
import { bottomUp, boxesWithin, hits, layersOf, topDown, valueOf, widths } from "./tree.js";

/** @typedef {import("../views.js").Shown} Shown */
/** @typedef {import("./tree.js").Told} Told */
/** @typedef {import("./tree.js").Node} Node */

/** Narrower boxes are not drawn: zoom in, or look them up below. */
const LEAST_BOX = 0.003;
const ROW_PX = 30;
/** Of the colour in the box that differs most, percent: letters on it stay readable. */
const FULL = 45;
/** A change of less has no colour, ms. */
const LEAST_MS = 0.005;
const ARROWS = new Map([
  ["ArrowUp", (/** @type {Node[]} */ nodes, /** @type {number} */ at, /** @type {number[]} */ drawn) => drawn.find((one) => one === nodes[at].parent)],
  ["ArrowDown", (/** @type {Node[]} */ nodes, /** @type {number} */ at, /** @type {number[]} */ drawn) => drawn.find((one) => nodes[one].parent === at)],
  ["ArrowRight", (/** @type {Node[]} */ nodes, /** @type {number} */ at, /** @type {number[]} */ drawn) => drawn.find((one) => one > at && nodes[one].level === nodes[at].level)],
  ["ArrowLeft", (/** @type {Node[]} */ nodes, /** @type {number} */ at, /** @type {number[]} */ drawn) => drawn.findLast((one) => one < at && nodes[one].level === nodes[at].level)],
]);

/**
 * @param {Told} told
 * @param {Shown} shown
 * @param {HTMLElement | null} below what stands below the picture, beside the panel
 */
export function explorer(told, shown, below) {
  const { place, keep } = shown;
  const layers = layersOf(told);
  const state = {
    up: place.tree === "bottom-up",
    merged: place.layers === "merged" && layers > 0,
    rank: told.ranks.indexOf(Number(place.rank || NaN)),
    against: place.against === undefined ? null : place.against === "median" ? -1 : told.ranks.indexOf(Number(place.against)),
    words: place.find ?? "",
  };
  const frame = h("div", { class: "modules", role: "group", "aria-label": "Modules and kernels" });
  const readout = h("p", { class: "readout", role: "status" }, WHAT);
  const side = h("div", { class: "module-panel" });
  const controls = h("div", { class: "controls" });
  const key = h("ul", { class: "legend flush" });
  /** @type {Node[]} */
  let nodes = [];
  /** What each node shows, and how wide it is. @type {(node: number) => number} */
  let value = () => 0;
  /** @type {(node: number) => number} */
  let width = () => 0;
  /** The node that fills the width, the one whose panel shows, and those that have a box. */
  let root = 0;
  let chosen = 0;
  /** @type {number[]} */
  let drawn = [];
  grow(place.node, place.module);
  const body = h("div", { class: "explorer" }, h("div", {}, card("Where in the model", h("p", { class: "note" }, about(told)), controls, frame, readout, key), below), side);
  return { body, choose: (/** @type {string} */ path) => choose(Math.max(0, nodes.findIndex((node) => isModule(node, path))), true) };

  /**
   * @param {string} [wanted] the key of the node to choose
   * @param {string} [path] or its module, as links of other views have it
   */
  function grow(wanted, path) {
    nodes = state.up ? bottomUp(told, state.merged) : topDown(told, state.merged);
    root = 0;
    measure();
    const found = wanted || path ? nodes.findIndex((node) => (wanted ? node.key === wanted : isModule(node, path))) : 0;
    draw();
    choose(Math.max(0, found), false);
    controls.replaceChildren(...choices());
  }

  /** Whose time is shown has changed: values are made anew, each when it is asked for. */
  function measure() {
    /** @type {number[]} */
    const values = [];
    value = (node) => (values[node] ??= valueOf(nodes[node].ms, measured()));
    if (measured().against === null) width = value;
    else {
      const wide = widths(nodes, value);
      width = (node) => wide[node];
    }
  }

  function measured() {
    return { rank: state.rank, against: state.rank < 0 ? null : state.against };
  }

  /** @param {boolean} [focused] */
  function draw(focused = false) {
    const isDifference = measured().against !== null;
    const shownBoxes = boxesWithin(nodes, root, width, LEAST_BOX);
    drawn = shownBoxes.map(({ index }) => index);
    const found = new Set(hits(nodes, state.words));
    const most = Math.max(...drawn.filter((one) => one > 0).map((one) => Math.abs(value(one))), 0);
    frame.style.height = `${(Math.max(...shownBoxes.map(({ depth }) => depth)) + 1) * ROW_PX}px`;
    frame.replaceChildren(...shownBoxes.map((box) => boxOf(box, isDifference, most, found)));
    key.replaceChildren(...legend(isDifference));
    if (focused) boxElement(root)?.focus();
    if (state.words.trim()) {
      const total = [...found].reduce((sum, one) => sum + value(one), 0);
      readout.textContent = `${count(found.size, "hit")} of “${state.words.trim()}”: ${written(total, isDifference)} in all.`;
    }
  }

  /** @param {number} index */
  function boxElement(index) {
    return /** @type {HTMLElement | undefined} */ (frame.children[drawn.indexOf(index)]);
  }

  /**
   * @param {import("./model.js").Box} box
   * @param {boolean} isDifference
   * @param {number} most of the differences
   * @param {Set<number>} found
   */
  function boxOf({ index, depth, from, share }, isDifference, most, found) {
    const node = nodes[index];
    const text = written(value(index), isDifference);
    return h(
      "button",
      {
        type: "button",
        class: `module ${node.colour && !isDifference ? "kind" : ""} ${isDifference ? "changed-module" : ""} ${found.has(index) ? "hit" : ""}`,
        "data-quantity": "time of a module",
        "data-owner": node.colour || null,
        title: `${node.said}: ${text}`,
        "aria-label": `${node.said}: ${text}`,
        "aria-pressed": String(index === chosen),
        style: `left: ${100 * from}%; width: ${100 * share}%; top: ${depth * ROW_PX}px${isDifference ? changed(value(index), most) : ""}`,
        click: () => {
          root = index === root ? Math.max(0, nodes[index].parent) : index;
          draw(true);
          choose(index, true);
        },
        keydown: (/** @type {KeyboardEvent} */ event) => {
          const to = ARROWS.get(event.key)?.(nodes, index, drawn);
          if (to === undefined) return;
          event.preventDefault();
          boxElement(to)?.focus();
        },
        focus: () => (readout.textContent = `${node.said}: ${text}${isDifference ? "" : `, ${percent(value(index) / Math.max(value(0), 1e-9))} of the step`}.`),
      },
      h("span", {}, isDifference ? h("b", {}, node.name) : node.name, ` ${text}`),
      node.colour && !isDifference ? h("i", { class: "parts" }, h("b", { class: `owner-${node.colour}`, style: "flex: 1" })) : null,
    );
  }

  /**
   * @param {number} index
   * @param {boolean} kept
   */
  function choose(index, kept) {
    boxElement(chosen)?.setAttribute("aria-pressed", "false");
    chosen = index;
    boxElement(chosen)?.setAttribute("aria-pressed", "true");
    side.replaceChildren(panel(told, nodes, chosen, measured(), shown, pick));
    if (kept) keep({ node: nodes[index].key, module: "" });
  }

  /** @param {number} rank its place in `ranks`; -1 for the median rank */
  function pick(rank) {
    state.rank = rank;
    keep({ rank: rank < 0 ? "" : String(told.ranks[rank]) });
    redraw();
  }

  function redraw() {
    measure();
    draw();
    choose(chosen, false);
    controls.replaceChildren(...choices());
  }

  function choices() {
    const names = told.ranks.map((rank, i) => ({ value: i, name: `rank ${rank}` }));
    const others = names.filter(({ value }) => value !== state.rank);
    return [
      toggle("Order", [["Top-down", false], ["Bottom-up", true]], state.up, (up) => {
        state.up = up;
        keep({ tree: up ? "bottom-up" : "", node: "" });
        grow();
      }),
      layers
        ? toggle("Layers", [["Each layer", false], [`${layers} layers merged`, true]], state.merged, (merged) => {
            state.merged = merged;
            keep({ layers: merged ? "merged" : "", node: "" });
            grow();
          })
        : null,
      told.ranks.length > 1 ? select("Time of", [{ value: -1, name: "the median rank" }, ...names], state.rank, pick) : null,
      state.rank >= 0
        ? select("less", [{ value: -2, name: "nothing" }, { value: -1, name: "the other ranks’ median" }, ...others], state.against ?? -2, (against) => {
            state.against = against === -2 ? null : against;
            keep({ against: against === -2 ? "" : against === -1 ? "median" : String(told.ranks[against]) });
            redraw();
          })
        : null,
      h("label", { class: "find" }, "Find", search()),
    ].filter((part) => part !== null);
  }

  function search() {
    const input = /** @type {HTMLInputElement} */ (
      h("input", {
        type: "search",
        value: state.words,
        placeholder: "module, operator or kernel",
        input: () => {
          state.words = input.value;
          keep({ find: input.value });
          draw();
        },
      })
    );
    return input;
  }

  /** @param {boolean} isDifference */
  function legend(isDifference) {
    if (isDifference) {
      const [mine, others] = [`rank ${told.ranks[state.rank]}`, state.against === -1 ? "the other ranks’ median" : `rank ${told.ranks[state.against ?? 0]}`];
      const one = (/** @type {string} */ colour, /** @type {string} */ name) => h("li", {}, h("i", { style: `background: var(--${colour})` }), name);
      return [one("critical", `longer on ${mine} than ${state.against === -1 ? others : `on ${others}`}`), one("accent", "shorter"), h("li", {}, "as wide as the difference in ms")];
    }
    const used = new Set(told.part);
    return PARTS.map(({ name, colour }, part) => ({ name, colour, part })).filter(({ part }) => used.has(part)).map(({ name, colour }) => h("li", {}, h("i", { class: `owner-${colour}` }), name));
  }
}

/**
 * @param {Node} node
 * @param {string | undefined} path
 */
const isModule = (node, path) => node.kind === "module" && node.path === path;

const WHAT = "Choose a box to see what is within it; choose it again to go back. Arrow keys move over the boxes.";

/** @param {Told} told */
function about({ ranks, all_ranks }) {
  const of = ranks.length < all_ranks ? `${ranks.length} of ${all_ranks.toLocaleString("en")} ranks: those that compute longest, and others, evenly spread. ` : "";
  return `${of}Each box is as wide as its time in a step. Below modules stand forward and backward of what they do themselves, then operators and kernels.`;
}

/**
 * @param {number} value
 * @param {boolean} isDifference
 */
const written = (value, isDifference) => (isDifference ? `${signed(value, Math.abs(value) >= 9.995 ? 1 : 2)}\u00a0ms` : ms(value));

/**
 * @param {number} change
 * @param {number} most
 */
function changed(change, most) {
  if (Math.abs(change) < LEAST_MS || !(most > 0)) return "";
  return `; background: color-mix(in srgb, var(--${change < 0 ? "accent" : "critical"}) ${8 + ((FULL - 8) * Math.abs(change)) / most}%, var(--line))`;
}

/**
 * @param {string} label
 * @param {[string, boolean][]} options
 * @param {boolean} now
 * @param {(value: boolean) => void} choose
 */
function toggle(label, options, now, choose) {
  return h("div", { class: "switch", role: "group", "aria-label": label }, options.map(([name, value]) => h("button", { type: "button", "aria-pressed": String(value === now), click: () => value !== now && choose(value) }, name)));
}

/**
 * @param {string} label
 * @param {{value: number, name: string}[]} options
 * @param {number} now
 * @param {(value: number) => void} choose
 */
function select(label, options, now, choose) {
  const element = /** @type {HTMLSelectElement} */ (h("select", { change: () => choose(Number(element.value)) }, options.map(({ value, name }) => h("option", { value, selected: value === now }, name))));
  return h("label", {}, label, element);
}
