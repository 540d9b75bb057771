// All ranks on one clock around the evidence: CPU and GPU, collectives joined across ranks, straggler wait hatched. Only the
// window that shows is asked for, with as much again at each side.

import { fetchSlice } from "../api.js";
import { paint, picture } from "../canvas.js";
import { card, folded, h } from "../dom.js";
import { count, ms, ranges } from "../format.js";
import { keysDialog } from "../keys.js";
import { affectedRanks, BOXES, evidenceId, ownerName } from "../model.js";
import { numbers } from "../table.js";
import { eventAt, firstAbove } from "../timeline/cull.js";
import { AXIS, GUTTER, draw } from "../timeline/draw.js";
import { foundAgain, laidOut, ranksOf, search, shortName, usAfter, waitsUntil } from "../timeline/rows.js";
import { moved, wholeOf, widened, within, zoomed } from "../timeline/scale.js";

/** @typedef {import("../views.js").View} View */
/** @typedef {import("../views.js").Shown} Shown */
/** @typedef {import("../timeline/scale.js").Span} Span */
/** @typedef {import("../timeline/rows.js").Laid} Laid */
/** @typedef {{id: string, ranks: number[], seen: Span, title: string}} Spot a place worth looking at; us after the origin */

const QUIET_MS = 150;
const STEP = 0.2;
const REACH_PX = 3;
const LISTED = 200;

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
  const { diagnosis, views, place, keep } = shown;
  if (!views || views.from_digests) {
    const reason = "The traces are not available here, only digests. Open the log directory with the traces in TensorBoard to see the timeline.";
    element.append(card("Timeline", h("p", { class: "note" }, reason)));
    return;
  }
  const origin = views.origin_ns;
  const whole = wholeOf(views.clock_ms, views.step_ms);
  const spots = spotsOf(shown);
  let spot = spots.find(({ id }) => id === place.evidence) ?? spots[0];
  let ranks = ranksOf(place.ranks, views.ranks) ?? spot.ranks;
  let span = within(spanOf(place) ?? widened(spot.seen, 0.15), whole);
  /** @type {Laid | null} */
  let laid = null;
  /** @type {{row: number, index: number} | null} */
  let chosen = null;
  /** @type {[number, number][]} */
  let hits = [];
  let hit = -1;
  /** @type {number[]} */
  const marks = [];
  /** @type {Span | null} */
  let measured = null;
  /** Where the pointer is, us. */
  let pointed = (span.from + span.to) / 2;
  let timer = 0;
  let frame = 0;
  let asked = 0;
  let failing = false;
  let left = false;

  const affected = affectedRanks(diagnosis);
  const canvas = picture("timeline-canvas", `Timeline of ${diagnosis.name}, all ranks on one clock`, (context, ...size) => {
    if (!laid) return;
    const found = new Set(hits.map(([row, index]) => `${row}:${index}`));
    draw(context, ...size, { laid, span, evidence: spot.seen, affected, chosen, found, marks, measured });
  });
  canvas.tabIndex = 0;
  const readout = h("p", { class: "readout", role: "status" }, "Reading the traces…");
  const trouble = h("p", { class: "note" });
  const help = keysDialog("Keys of the timeline", KEYS);
  const seek = /** @type {HTMLInputElement} */ (
    h("input", { type: "search", placeholder: "kernel or operator", "aria-label": "Search", input: look, keydown: next })
  );
  const listed = h("div");

  // The picture

  function redraw() {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => paint(canvas));
  }

  /** @param {Span} to */
  function show(to) {
    span = within(to, whole);
    redraw();
    clearTimeout(timer);
    timer = setTimeout(settle, QUIET_MS);
  }

  function settle() {
    keep({ from: String(Math.round(span.from)), to: String(Math.round(span.to)), ranks: ranges(ranks).replace(/–/g, "-").replace(/ /g, "") });
    const inside = laid && span.from >= laid.from && span.to <= laid.to;
    // A slice does not have its shortest events: zoomed in, they are asked for again.
    const coarse = laid?.hidden && span.to - span.from < (laid.to - laid.from) / 5;
    if (!inside || coarse) load();
    else list();
  }

  async function load() {
    const mine = ++asked;
    const { from, to } = within(widened(span, 0.5), whole);
    const ns = (/** @type {number} */ us) => String(BigInt(origin) + BigInt(Math.round(us * 1000)));
    try {
      const slice = await fetchSlice(diagnosis.name, ranks, ns(from), ns(to));
      if (mine !== asked || left) return;
      const before = laid;
      laid = laidOut(slice, origin);
      chosen = before && chosen && foundAgain(before.rows[chosen.row], chosen.index, laid.rows);
      hits = search(laid.rows, seek.value);
      hit = -1;
      canvas.style.height = `${AXIS + laid.height + 4}px`;
      trouble.textContent = laid.hidden ? `${count(laid.hidden, "short event")} hidden, zoom in to see them.` : "";
      // What it tells of the chosen event, or of the search, still holds.
      if (!before || failing) readout.textContent = HINT;
      failing = false;
      paint(canvas);
      list();
    } catch (error) {
      if (mine !== asked) return;
      readout.textContent = error instanceof Error ? error.message : String(error);
      failing = true;
    }
  }

  // Reading out

  /** @param {{row: number, index: number} | null} one */
  function choose(one) {
    chosen = one;
    readout.textContent = one && laid ? told(laid, one.row, one.index, spot.seen.from) : HINT;
    redraw();
  }

  function list() {
    const { rows, joined } = /** @type {Laid} */ (laid);
    const table = () => numbers({ title: "timeline" }, { heads: HEADS, rows: inView(rows, joined, span, spot.seen.from) });
    const open = listed.querySelector("details")?.open ?? false;
    const details = /** @type {HTMLDetailsElement} */ (folded(`The ${LISTED} longest events of this window as a table`, table));
    details.open = open;
    listed.replaceChildren(details);
  }

  // Search

  function look() {
    hits = laid ? search(laid.rows, seek.value) : [];
    hit = -1;
    readout.textContent = seek.value ? `${hits.length.toLocaleString("en")} events found.` : HINT;
    redraw();
  }

  /** @param {KeyboardEvent} event */
  function next(event) {
    event.stopPropagation();
    if (event.key === "Escape") {
      seek.value = "";
      look();
      canvas.focus();
    }
    if (event.key !== "Enter" || !hits.length || !laid) return;
    hit = (hit + (event.shiftKey ? hits.length - 1 : 1)) % hits.length;
    const [row, index] = hits[hit];
    const { starts, ends } = laid.rows[row];
    const half = (span.to - span.from) / 2;
    if (starts[index] < span.from || ends[index] > span.to) show({ from: starts[index] - half, to: starts[index] + half });
    choose({ row, index });
    readout.textContent = `${hit + 1} of ${hits.length}: ${readout.textContent}`;
  }

  // Keys

  /** @param {KeyboardEvent} event */
  function keyed(event) {
    if (help.open && event.key !== "?") return;
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || target.matches("input, select, textarea")) return;
    const arrows = target === canvas && event.key.startsWith("Arrow");
    const centre = pointed > span.from && pointed < span.to ? pointed : (span.from + span.to) / 2;
    /** @type {Record<string, () => void>} */
    const actions = {
      w: () => show(zoomed(span, centre, 1 / 1.4)),
      s: () => show(zoomed(span, centre, 1.4)),
      a: () => show(moved(span, -STEP)),
      d: () => show(moved(span, STEP)),
      f: fit,
      m: mark,
      "/": () => seek.focus(),
      "?": () => (help.open ? help.close() : help.showModal()),
      Escape: clear,
    };
    if (arrows) walk(event.key);
    else if (actions[event.key.toLowerCase()] ?? actions[event.key]) (actions[event.key.toLowerCase()] ?? actions[event.key])();
    else return;
    event.preventDefault();
  }

  function fit() {
    show(widened(spot.seen, 0.15));
  }

  function mark() {
    const at = chosen && laid ? laid.rows[chosen.row].starts[chosen.index] : pointed;
    const near = marks.findIndex((other) => Math.abs(other - at) <= REACH_PX * perPixel());
    if (near >= 0) marks.splice(near, 1);
    else marks.push(at);
    marks.sort((a, b) => a - b);
    const last = marks.slice(-2);
    readout.textContent =
      last.length < 2 ? "Marker set. Set another one to measure the time between." : `${ms((last[1] - last[0]) / 1000)} between the last two markers.`;
    redraw();
  }

  function clear() {
    marks.length = 0;
    measured = null;
    seek.value = "";
    look();
    choose(null);
  }

  /** @param {string} key */
  function walk(key) {
    if (!laid?.rows.length) return;
    const { rows } = laid;
    const row = chosen?.row ?? 0;
    const at = chosen ? rows[row].starts[chosen.index] : span.from;
    const along = { ArrowLeft: -1, ArrowRight: 1 }[key];
    const across = { ArrowUp: -1, ArrowDown: 1 }[key] ?? 0;
    let to = row + across;
    while (rows[to] && !rows[to].starts.length) to += across || 1;
    if (!rows[to]) return;
    const here = chosen && !across ? chosen.index + (along ?? 0) : firstAbove(rows[to].ends, at);
    const index = Math.min(Math.max(here, 0), rows[to].starts.length - 1);
    choose({ row: to, index });
    const { starts, ends } = rows[to];
    const half = (span.to - span.from) / 2;
    if (ends[index] < span.from || starts[index] > span.to) show({ from: starts[index] - half, to: starts[index] + half });
  }

  // Pointer

  const perPixel = () => (span.to - span.from) / Math.max(1, canvas.clientWidth - GUTTER);
  const instant = (/** @type {PointerEvent | WheelEvent} */ event) =>
    span.from + (event.clientX - canvas.getBoundingClientRect().left - GUTTER) * perPixel();
  /** @type {{x: number, span: Span, at: number, moved: boolean} | null} */
  let drag = null;

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    drag = { x: event.clientX, span, at: instant(event), moved: false };
    if (event.shiftKey) measured = { from: drag.at, to: drag.at };
    else measured = null;
  });
  canvas.addEventListener("pointermove", (event) => {
    pointed = instant(event);
    if (!drag) return;
    if (Math.abs(event.clientX - drag.x) > 2) drag.moved = true;
    if (measured) {
      measured.to = pointed;
      redraw();
    } else if (drag.moved) show(moved(drag.span, (drag.x - event.clientX) / Math.max(1, canvas.clientWidth - GUTTER)));
  });
  canvas.addEventListener("pointerup", (event) => {
    if (measured) readout.textContent = `${ms(Math.abs(measured.to - measured.from) / 1000)} measured.`;
    else if (drag && !drag.moved) choose(eventUnder(event));
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      show(zoomed(span, instant(event), 1.002 ** event.deltaY));
    },
    { passive: false },
  );

  /** @param {PointerEvent} event */
  function eventUnder(event) {
    const y = event.clientY - canvas.getBoundingClientRect().top - AXIS;
    const row = laid?.rows.findIndex(({ top, height }) => y >= top && y < top + height) ?? -1;
    if (!laid || row < 0) return null;
    const index = eventAt(laid.rows[row].starts, laid.rows[row].ends, instant(event), REACH_PX * perPixel());
    return index < 0 ? null : { row, index };
  }

  // What to look at

  const what = h(
    "select",
    {
      change: (/** @type {Event} */ { target }) => {
        const value = /** @type {HTMLSelectElement} */ (target).value;
        spot = spots.find(({ id }) => id === value) ?? spots[0];
        ranks = spot.ranks;
        which.value = ranges(ranks);
        laid = null;
        keep({ evidence: value });
        fit();
      },
    },
    spots.map(({ id, title }) => h("option", { value: id, selected: id === spot.id }, title)),
  );
  const which = /** @type {HTMLInputElement} */ (
    h("input", {
      value: ranges(ranks),
      size: 12,
      "aria-label": "Ranks",
      change: () => {
        ranks = ranksOf(which.value, views.ranks) ?? ranks;
        which.value = ranges(ranks);
        laid = null;
        show(span);
      },
    })
  );
  element.append(
    card(
      "All ranks on one clock",
      h(
        "div",
        { class: "controls" },
        h("label", {}, "Evidence", what),
        h("label", {}, "Ranks", which),
        h("label", {}, "Search", seek),
        h("button", { type: "button", click: fit }, "Fit the evidence"),
        h("button", { type: "button", click: () => help.showModal() }, "Keys"),
      ),
      canvas,
      legend(),
      readout,
      trouble,
      listed,
      help,
    ),
  );
  document.addEventListener("keydown", keyed);
  load();
  return leave;

  function leave() {
    left = true;
    clearTimeout(timer);
    cancelAnimationFrame(frame);
    document.removeEventListener("keydown", keyed);
  }
}

const HINT =
  "W S zoom, A D pan, F fits the evidence, ? lists all keys. A line joins the arrivals of the ranks at one collective; the dot is the last arrival.";
const HEADS = ["rank", "lane", "event", "start, ms", "duration, ms", "straggler wait, ms", "owner"];

/** Which place the address names: the whole span of a shared link. @param {import("../address.js").Place} place */
function spanOf({ from, to }) {
  const span = { from: Number(from), to: Number(to) };
  return from && to && span.to > span.from ? span : null;
}

/**
 * Every piece of evidence; without any, the step with the longest busy time.
 * @param {Shown} shown
 * @returns {Spot[]}
 */
function spotsOf({ diagnosis, views }) {
  const { origin_ns, ranks, steps, busy_ms, step_ms, clock_ms } = /** @type {import("../model.js").Views} */ (views);
  const found = diagnosis.findings.flatMap((finding) =>
    finding.evidence.flatMap(({ rank, step, window }, item) => {
      if (!window) return [];
      const [from, to] = window.seen.map((ns) => usAfter(ns, origin_ns));
      return [{ id: evidenceId(finding, item), ranks: window.ranks, seen: { from, to }, title: `${finding.rule}: rank ${rank}, step ${step}` }];
    }),
  );
  if (found.length) return found;
  const all = busy_ms.map((row, i) => ({ i, most: Math.max(...row.map((value) => value ?? 0)) }));
  const slowest = all.reduce((a, b) => (b.most > a.most ? b : a));
  const step = busy_ms[slowest.i].indexOf(slowest.most);
  const from = (clock_ms[slowest.i][step] ?? 0) * 1000;
  return [
    {
      id: "",
      ranks: ranks.slice(0, 4).includes(ranks[slowest.i]) ? ranks.slice(0, 4) : [...ranks.slice(0, 3), ranks[slowest.i]],
      seen: { from, to: from + (step_ms[slowest.i][step] ?? 0) * 1000 },
      title: `the longest step: rank ${ranks[slowest.i]}, step ${steps[step]}`,
    },
  ];
}

/**
 * @param {Laid} laid
 * @param {number} row
 * @param {number} index
 * @param {number} zero us
 */
function told({ rows, joined }, row, index, zero) {
  const { rank, lane, starts, ends, names, name, owners, owner } = rows[row];
  const until = waitsUntil(rows[row], index, joined);
  const one = joined.get(String(rows[row].collective[index]));
  const parts = [
    `rank ${rank}, ${lane}: ${shortName(names[name[index]])}`,
    `${ms((ends[index] - starts[index]) / 1000)} from ${ms((starts[index] - zero) / 1000)}`,
    until > starts[index] ? `of that ${ms((until - starts[index]) / 1000)} straggler wait for rank ${one?.last_rank}` : "",
    one ? `${one.kind} of ${(one.bytes / 1e6).toFixed(1)} MB` : owned(owners[owner[index]]),
  ];
  return parts.filter(Boolean).join(", ");
}

/** @param {string} owner of a slice, which does not split communication */
const owned = (owner) => (owner === "communication" ? "communication" : ownerName(owner));

/**
 * The longest events of a window, in order of time.
 * @param {import("../timeline/rows.js").Row[]} rows
 * @param {Laid["joined"]} joined
 * @param {Span} span
 * @param {number} zero us
 */
function inView(rows, joined, span, zero) {
  const all = rows.flatMap((row) => {
    const found = [];
    for (let i = firstAbove(row.ends, span.from); i < row.starts.length && row.starts[i] < span.to; i++)
      found.push({ row, i, takes: row.ends[i] - row.starts[i] });
    return found;
  });
  const longest = all.sort((a, b) => b.takes - a.takes).slice(0, LISTED);
  longest.sort((a, b) => a.row.starts[a.i] - b.row.starts[b.i]);
  return longest.map(({ row, i, takes }) => [
    `rank ${row.rank}`,
    row.lane,
    shortName(row.names[row.name[i]]),
    (row.starts[i] - zero) / 1000,
    takes / 1000,
    (waitsUntil(row, i, joined) - row.starts[i]) / 1000,
    owned(row.owners[row.owner[i]]),
  ]);
}

function legend() {
  return h(
    "ul",
    { class: "legend flush" },
    [...BOXES].map(([owner, name]) => h("li", {}, h("i", { class: `owner-${owner}` }), name)),
  );
}
