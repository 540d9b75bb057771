// Where each rank's step goes: one bar per rank or node, cut into owners or phases that sum to the step. Few are bars of
// elements, many a canvas with a row of pixels each; both read out by pointer and by keyboard.

import { isReport } from "../api.js";
import { MOVES, picture } from "../canvas.js";
import { gapsCard } from "../chart/gaps_card.js";
import { NAMES, nameRows } from "../chart/marks.js";
import { fillOf } from "../chart/textures.js";
import { card, h } from "../dom.js";
import { decimals, ms, percent } from "../format.js";
import { affectedRanks, nodeCount } from "../model.js";
import { ORDERS, cut, kindsOf, perNode, sorted } from "../cuts.js";
import { ofOwner } from "../timeline/place.js";
import { ticks } from "../timeline/scale.js";

/** @typedef {import("../views.js").View} View */
/** @typedef {import("../views.js").Shown} Shown */
/** @typedef {import("../cuts.js").Row} Row */
/** @typedef {import("../cuts.js").Kind} Kind */
/** @typedef {(row: Row, part: number) => void} Go to the longest stretch of a part in the timeline */

/** More bars than this are drawn on a canvas. */
const MOST_BARS = 48;
/** More rows than this do not fit on a page. */
const MOST_ROWS = 600;
/** A part narrower than this share of the bar has no room for its number. */
const LABELLED = 0.05;
/** Where the bars of the canvas begin: right of the names, below the axis of time. */
const [LEFT, TOP] = [NAMES + 12, 20];
/** In lower bars textures are no patterns but noise. */
const TEXTURED = 6;
/** Parts of other owners than the selected one. */
const FADED = 0.25;
/** So high are the bars of the affected at least, over their neighbours: to be seen at all. */
const LEAST_AFFECTED = 3;
const HINT = `Mean over steps. Point at a bar, or use the arrow keys, for exact values${isReport ? "" : "; click or Enter opens the longest such stretch in the timeline"}.`;

/** @type {View} */
export const budget = {
  title: "Budget",
  fragment: "budget",
  render,
  table(shown) {
    const kind = kindOf(shown);
    return () => ({
      heads: ["rank", "node", ...kind.parts.map(({ name }) => `${name}, ms`), "step, ms", "busy time, ms"],
      meanings: new Map(kind.parts.map(({ name, when }) => [`${name}, ms`, when])),
      rows: cut(shown, kind).map(({ name, node, values, total, busy }) => [name, node, ...values, total, busy]),
    });
  },
  keys: [["Arrow keys, Enter", "move along the bars of the budget; open a part in the timeline"]],
};

/** @param {Shown} shown */
function kindOf({ diagnosis, place }) {
  const kinds = kindsOf(diagnosis);
  return kinds.find(({ id }) => id === place.cut) ?? kinds[0];
}

/**
 * @param {HTMLElement} element
 * @param {Shown} shown
 */
function render(element, shown) {
  const { diagnosis, views } = shown;
  const kinds = kindsOf(diagnosis);
  const nodes = nodeCount(views);
  /** @type {{cut: string, order: string, by: string}} */
  const choices = { cut: kindOf(shown).id, order: shown.place.order ?? "rank", by: shown.place.by ?? "rank" };
  const affected = affectedRanks(diagnosis);
  const body = h("div");
  const gaps = gapsCard(shown);

  /** @type {Go} */
  function go(row, part) {
    const kind = kinds.find(({ id }) => id === choices.cut) ?? kinds[0];
    if (!views || isReport || kind.id !== "owners") return;
    // Of a node, the rank that has most of it.
    const { id } = kind.parts[part];
    const most = row.ranks.reduce((best, rank) => ((diagnosis.budget_ms[rank]?.[id] ?? 0) > (diagnosis.budget_ms[best]?.[id] ?? 0) ? rank : best));
    const place = ofOwner(views, most, id, shown.place.step ? Number(shown.place.step) : null);
    if (place) shown.link("timeline", place).click();
  }

  function draw() {
    const kind = kinds.find(({ id }) => id === choices.cut) ?? kinds[0];
    const ranks = cut(shown, kind);
    const rows = sorted(choices.by === "node" ? perNode(ranks) : ranks, choices.order);
    const marked = rows.map(({ ranks }) => ranks.some((rank) => affected.has(rank)));
    const owner = kind.id === "owners" ? (shown.place.owner ?? "") : "";
    const pick = kind.id === "owners" ? (/** @type {string} */ id) => {
      shown.keep({ owner: id === owner ? "" : id });
      draw();
      if (id !== owner) gaps?.show(id);
      /** @type {HTMLElement | null} */ (body.querySelector(`.legend [data-owner="${id}"]`))?.focus();
    } : null;
    const drawn = rows.length > MOST_BARS ? canvas(rows, kind, marked, go, owner) : bars(rows, kind, marked, go, owner);
    body.replaceChildren(drawn.picture, legend(rows, kind, drawn.flat, owner, pick), drawn.readout);
  }

  /**
   * @param {"cut" | "order" | "by"} key
   * @param {string} label
   * @param {[string, string][]} options value and text
   */
  function choice(key, label, options) {
    const select = h(
      "select",
      {
        change: (/** @type {Event} */ { target }) => {
          choices[key] = /** @type {HTMLSelectElement} */ (target).value;
          shown.keep({ [key]: choices[key] });
          draw();
        },
      },
      options.map(([value, text]) => h("option", { value, selected: value === choices[key] }, text)),
    );
    return h("label", {}, label, select);
  }

  element.append(
    card(
      "Where each rank's step goes",
      h(
        "div",
        { class: "controls" },
        kinds.length > 1 && choice("cut", "Split by", kinds.map(({ id, title }) => [id, title])),
        nodes > 1 && choice("by", "One bar per", [["rank", "rank"], ["node", "node"]]),
        choice("order", "Sorted by", ORDERS.filter(([id]) => id !== "node" || nodes > 1)),
      ),
      body,
    ),
  );
  if (gaps) element.append(gaps.element);
  draw();
}

/** Phases have the colours of owners, and not what their textures say. @param {Kind} kind */
const isTextured = ({ id }) => id === "owners";

/**
 * @param {Row[]} rows
 * @param {Kind} kind
 * @param {boolean[]} marked
 * @param {Go} go
 * @param {string} owner the selected one, "" if none
 */
function bars(rows, kind, marked, go, owner) {
  const longest = Math.max(...rows.map(({ total }) => total));
  const readout = h("p", { class: "readout", "aria-live": "polite" }, HINT);
  const list = h(
    "div",
    { class: `bars${rows.length > 24 ? " many" : ""}${isTextured(kind) ? " textured" : ""}`, role: "group", "aria-label": "Budget of each rank" },
    rows.map((row, i) => bar(row, kind, longest, marked[i], i === 0, owner)),
  );
  const show = (/** @type {Event} */ event) => {
    const part = /** @type {HTMLElement} */ (event.target).closest(".part");
    readout.textContent = part?.getAttribute("aria-label") ?? HINT;
  };
  list.addEventListener("pointerover", show);
  list.addEventListener("pointerleave", () => (readout.textContent = HINT));
  list.addEventListener("focusin", show);
  const open = (/** @type {Event} */ { target }) => {
    const part = /** @type {HTMLElement} */ (target).closest(".part");
    const row = part?.closest(".row");
    if (part && row) go(rows[[...list.children].indexOf(row)], Number(part.getAttribute("data-part")));
  };
  list.addEventListener("click", open);
  list.addEventListener("keydown", (event) => (event.key === "Enter" ? open(event) : move(event)));
  return { picture: list, readout, flat: false };
}

/**
 * @param {Row} row
 * @param {Kind} kind
 * @param {number} longest ms, the length of a whole track
 * @param {boolean} affected
 * @param {boolean} first
 * @param {string} owner the selected one, "" if none
 */
function bar(row, kind, longest, affected, first, owner) {
  const { name, node, values, total } = row;
  const parts = kind.parts.map((part, i) => ({ part, i })).filter(({ i }) => values[i] > 0);
  return h(
    "div",
    { class: `row${affected ? " affected" : ""}` },
    h(
      "span",
      { class: "rank", title: node && node !== name ? `${name} on ${node}` : name },
      name,
      affected ? h("span", { role: "img", "aria-label": "affected rank" }, " ◀") : null,
    ),
    h(
      "div",
      { class: "bar", style: `width: ${(100 * total) / longest}%` },
      parts.map(({ part, i }, place) =>
        h(
          "span",
          {
            class: `part owner-${part.colour}${owner && part.id !== owner ? " faded" : ""}`,
            style: `flex: ${values[i]} 1 0`,
            "data-part": i,
            role: "img",
            tabindex: first && place === 0 ? 0 : -1,
            "aria-label": said(row, kind, i),
          },
          values[i] > longest * LABELLED ? h("span", {}, decimals(values[i], 1)) : null,
        ),
      ),
    ),
    h("span", { class: "total", "data-quantity": "step time" }, ms(total)),
  );
}

/**
 * @param {Row} row
 * @param {Kind} kind
 * @param {number} i which part
 */
function said({ name, node, values, total }, kind, i) {
  const where = node && node !== name ? ` on ${node}` : "";
  return `${name}${where}: ${kind.parts[i].name} ${ms(values[i])}, ${percent(values[i] / total)} of ${ms(total)}`;
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

/**
 * What the colours are; an owner is selected by its name.
 * @param {Row[]} rows
 * @param {Kind} kind
 * @param {boolean} flat whether owners are drawn without their textures, but for the wait's
 * @param {string} owner the selected one, "" if none
 * @param {((owner: string) => void) | null} pick
 */
function legend(rows, kind, flat, owner, pick) {
  const used = kind.parts.filter((_, i) => rows.some(({ values, total }) => values[i] > total / 1000));
  const item = (/** @type {import("../cuts.js").Part} */ { id, name, colour }) => {
    const key = h("i", { class: `owner-${colour}` });
    return pick ? h("button", { type: "button", class: "pick", "aria-pressed": String(id === owner), "data-owner": id, click: () => pick(id) }, key, name) : [key, name];
  };
  return h(
    "ul",
    { class: `legend${flat ? " flat" : isTextured(kind) ? " textured" : ""}` },
    used.map((part) => h("li", { title: `${part.name}: ${part.when}` }, item(part))),
  );
}

/**
 * The same bars, as many as there are: a pixel or more for each. Pointing moves a marker, and draws nothing anew.
 * @param {Row[]} rows
 * @param {Kind} kind
 * @param {boolean[]} marked
 * @param {Go} go
 * @param {string} owner the selected one, "" if none
 */
function canvas(rows, kind, marked, go, owner) {
  const longest = Math.max(...rows.map(({ total }) => total));
  const { of, lines } = standIns(rows, marked);
  const pitch = Math.max(1, Math.min(12, Math.floor(512 / lines.length)));
  const top = (/** @type {number} */ row) => TOP + Math.floor(row / of) * pitch;
  const hint = of > 1 ? `${HINT} A row is the rank with the longest busy time of ${of}.` : HINT;
  const readout = h("p", { class: "readout", "aria-live": "polite" }, hint);
  const marker = h("div", { class: "heat-cursor", hidden: true });
  const image = picture("budget-map", `Budget of ${rows.length} ranks or nodes`, (context, width, _, colour) => {
    const scale = (width - LEFT) / longest;
    const textured = isTextured(kind) && pitch >= TEXTURED;
    // In thin rows too, the wait is pale: else it outshines its cause.
    const fills = kind.parts.map(({ colour: name }) => (textured || name === "wait" ? fillOf(context, name, colour) : colour(name)));
    const gap = pitch > 3 ? 1 : 0;
    // A colour at a time: to change the pen costs more than to move it.
    const bars = (/** @type {number[]} */ some, /** @type {number} */ tall) => {
      const left = some.map(() => LEFT);
      kind.parts.forEach((_, part) => {
        context.fillStyle = fills[part];
        context.globalAlpha = owner && kind.parts[part].id !== owner ? FADED : 1;
        some.forEach((row, i) => {
          const wide = rows[row].values[part] * scale;
          if (wide > 0) context.fillRect(left[i], top(row), wide, tall);
          left[i] += wide;
        });
      });
    };
    const affected = lines.filter((row) => marked[row]);
    bars(lines.filter((row) => !marked[row]), pitch - gap);
    bars(affected, Math.max(LEAST_AFFECTED, pitch - gap));
    context.globalAlpha = 1;
    context.fillStyle = colour("critical");
    for (const row of affected) context.fillRect(LEFT - 8, top(row), 5, Math.max(LEAST_AFFECTED, pitch - gap));
    const names = rows.map(({ name }) => name);
    nameRows(context, colour, { names, affected: (row) => marked[row], pitch: pitch / of, top: TOP, right: LEFT - 12 });
    context.font = `11px ${getComputedStyle(image).fontFamily}`;
    context.fillStyle = colour("soft");
    for (const at of ticks({ from: 0, to: longest }, width - LEFT, 96)) {
      const text = at ? ms(at).replace(".0", "") : "0";
      if (LEFT + at * scale + context.measureText(text).width < width) context.fillText(text, LEFT + at * scale, TOP / 2 - 1);
    }
  });
  image.style.height = `${TOP + pitch * lines.length}px`;
  image.tabIndex = 0;
  const at = { row: 0, part: 0 };

  function show() {
    const { values, total } = rows[at.row];
    const before = values.slice(0, at.part).reduce((sum, value) => sum + value, 0);
    const scale = (image.clientWidth - LEFT) / longest;
    marker.hidden = false;
    marker.style.cssText =
      `left: ${LEFT + before * scale}px; width: ${Math.max(2, values[at.part] * scale)}px; ` +
      `top: ${top(at.row)}px; height: ${pitch}px`;
    readout.textContent = `${said(rows[at.row], kind, at.part)}${marked[at.row] ? " (affected rank)" : ""}`;
    return total;
  }
  image.addEventListener("pointermove", (event) => {
    const box = image.getBoundingClientRect();
    at.row = lines[clamp(Math.floor((event.clientY - box.top - TOP) / pitch), lines.length)];
    let value = ((event.clientX - box.left - LEFT) / (box.width - LEFT)) * longest;
    at.part = rows[at.row].values.findIndex((part) => (value -= part) < 0);
    if (at.part < 0) at.part = rows[at.row].values.length - 1;
    show();
  });
  const leave = () => {
    marker.hidden = true;
    readout.textContent = hint;
  };
  image.addEventListener("pointerleave", leave);
  image.addEventListener("blur", leave);
  image.addEventListener("click", () => go(rows[at.row], at.part));
  image.addEventListener("keydown", (event) => {
    if (event.key === "Enter") go(rows[at.row], at.part);
    const [down, right] = MOVES[event.key] ?? [0, 0];
    if (!down && !right) return;
    event.preventDefault();
    at.row = clamp(at.row + down, rows.length);
    at.part = clamp(at.part + right, kind.parts.length);
    show();
    marker.scrollIntoView({ block: "nearest" });
  });
  return { picture: h("div", { class: "heat-frame" }, image, marker), readout, flat: pitch < TEXTURED };
}

/**
 * The rows that are drawn: of too many, one of as many successive ones, an affected one or the longest in busy time.
 * @param {Row[]} rows
 * @param {boolean[]} marked
 */
function standIns(rows, marked) {
  const of = Math.max(1, Math.ceil(rows.length / MOST_ROWS));
  const first = (/** @type {number} */ a, /** @type {number} */ b) => (marked[a] === marked[b] ? rows[b].busy > rows[a].busy : marked[b]) ? b : a;
  /** @type {number[]} */
  const lines = [];
  rows.forEach((_, i) => (i % of ? (lines[lines.length - 1] = first(lines[lines.length - 1], i)) : lines.push(i)));
  return { of, lines };
}


/**
 * @param {number} i
 * @param {number} length
 */
const clamp = (i, length) => Math.max(0, Math.min(length - 1, i));
