// What a timeline shows: a span of the common clock on some ranks, and what is chosen, sought, marked and measured in it.
// It asks for the events of the span, with as much again at each side, once the span has come to rest.

import { fetchSlice } from "../api.js";
import { paint, picture } from "../canvas.js";
import { folded, h } from "../dom.js";
import { count, ms, ranges } from "../format.js";
import { affectedRanks } from "../model.js";
import { numbers } from "../table.js";
import { eventAt } from "./cull.js";
import { AXIS, GUTTER, draw } from "./draw.js";
import { HEADS, LISTED, inView, sentence } from "./events.js";
import { foundAgain, laidOut, search } from "./rows.js";
import { widened, within } from "./scale.js";
import { neighbour, toggled } from "./walk.js";

/** @typedef {import("./rows.js").Laid} Laid */
/** @typedef {import("./scale.js").Span} Span */
/** @typedef {import("./spots.js").Spot} Spot */
/** @typedef {import("./walk.js").Chosen} Chosen */

const QUIET_MS = 150;
const REACH_PX = 3;
const HINT =
  "W S zoom, A D pan, F fits the evidence, ? lists all keys. A line joins the arrivals of the ranks at one collective; the dot is the last arrival.";

/** Around a piece of evidence. @param {Spot} spot */
export const around = ({ seen }) => widened(seen, 0.15);

export class Panel {
  /** @type {Laid | null} */
  laid = null;
  /** @type {Chosen | null} */
  chosen = null;
  /** @type {[number, number][]} Rows and events that the search found, and which of them is chosen. */
  hits = [];
  hit = -1;
  /** @type {number[]} us */
  marks = [];
  /** @type {Span | null} */
  measured = null;

  /** Requests sent: the answer to an earlier one than the last comes too late. */
  #asked = 0;
  #failed = false;
  #left = false;
  #timer = 0;
  #frame = 0;

  readout = h("p", { class: "readout", role: "status" }, "Reading the traces…");
  hidden = h("p", { class: "note" });
  listed = h("div");
  sought = /** @type {HTMLInputElement} */ (
    h("input", { type: "search", placeholder: "kernel or operator", "aria-label": "Search", input: () => this.look(), keydown: (/** @type {KeyboardEvent} */ event) => this.#soughtOn(event) })
  );

  /**
   * @param {import("../views.js").Shown} shown
   * @param {string} origin of the common clock, ns
   * @param {Span} whole what there is to show
   * @param {Spot} spot
   * @param {number[]} ranks
   * @param {Span} span
   */
  constructor({ diagnosis, keep }, origin, whole, spot, ranks, span) {
    this.run = diagnosis.name;
    this.keep = keep;
    this.origin = origin;
    this.whole = whole;
    this.spot = spot;
    this.ranks = ranks;
    this.span = within(span, whole);
    /** Where the pointer is, us. */
    this.pointed = (this.span.from + this.span.to) / 2;
    const affected = affectedRanks(diagnosis);
    this.canvas = picture("timeline-canvas", `Timeline of ${this.run}, all ranks on one clock`, (context, ...size) => {
      const { laid, span, spot, chosen, hits, marks, measured } = this;
      if (!laid) return;
      const found = new Set(hits.map(([row, index]) => `${row}:${index}`));
      draw(context, ...size, { laid, span, evidence: spot.seen, affected, chosen, found, marks, measured });
    });
    this.canvas.tabIndex = 0;
  }

  /** us in a CSS pixel. */
  get perPixel() {
    return (this.span.to - this.span.from) / Math.max(1, this.canvas.clientWidth - GUTTER);
  }

  /** Below the picture. @param {string} words */
  say(words) {
    this.readout.textContent = words;
  }

  redraw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => paint(this.canvas));
  }

  /** @param {Span} to */
  show(to) {
    this.span = within(to, this.whole);
    this.redraw();
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#settle(), QUIET_MS);
  }

  fit() {
    this.show(around(this.spot));
  }

  /** @param {number[]} ranks */
  showRanks(ranks) {
    this.ranks = ranks;
    this.laid = null;
    this.show(this.span);
  }

  /** @param {Spot} spot */
  showSpot(spot) {
    this.spot = spot;
    this.ranks = spot.ranks;
    this.laid = null;
    this.keep({ evidence: spot.id });
    this.fit();
  }

  /** The span has come to rest: the address keeps it, and what is not here is asked for. */
  #settle() {
    const { laid, span, ranks } = this;
    this.keep({ from: String(Math.round(span.from)), to: String(Math.round(span.to)), ranks: ranges(ranks).replace(/–/g, "-").replace(/ /g, "") });
    const inside = laid && span.from >= laid.from && span.to <= laid.to;
    // A slice does not have its shortest events: zoomed in, they are asked for again.
    const coarse = laid?.hidden && span.to - span.from < (laid.to - laid.from) / 5;
    if (!inside || coarse) this.load();
    else this.#list();
  }

  async load() {
    const mine = ++this.#asked;
    const { from, to } = within(widened(this.span, 0.5), this.whole);
    const ns = (/** @type {number} */ us) => String(BigInt(this.origin) + BigInt(Math.round(us * 1000)));
    try {
      const slice = await fetchSlice(this.run, this.ranks, ns(from), ns(to));
      if (mine === this.#asked && !this.#left) this.#take(laidOut(slice, this.origin));
    } catch (error) {
      if (mine !== this.#asked) return;
      this.say(error instanceof Error ? error.message : String(error));
      this.#failed = true;
    }
  }

  /** @param {Laid} laid */
  #take(laid) {
    const before = this.laid;
    this.laid = laid;
    this.chosen = before && this.chosen && foundAgain(before.rows[this.chosen.row], this.chosen.index, laid.rows);
    this.#search();
    this.canvas.style.height = `${AXIS + laid.height + 4}px`;
    this.hidden.textContent = laid.hidden ? `${count(laid.hidden, "short event")} hidden, zoom in to see them.` : "";
    // What it tells of the chosen event, or of the search, still holds.
    if (!before || this.#failed) this.say(HINT);
    this.#failed = false;
    paint(this.canvas);
    this.#list();
  }

  #list() {
    const { rows, joined } = /** @type {Laid} */ (this.laid);
    const table = () => numbers({ title: "timeline" }, { heads: HEADS, rows: inView(rows, joined, this.span, this.spot.seen.from) });
    const open = this.listed.querySelector("details")?.open ?? false;
    const details = /** @type {HTMLDetailsElement} */ (folded(`The ${LISTED} longest events of this window as a table`, table));
    details.open = open;
    this.listed.replaceChildren(details);
  }

  /** @param {Chosen | null} one */
  choose(one) {
    this.chosen = one;
    this.say(one && this.laid ? sentence(this.laid, one.row, one.index, this.spot.seen.from) : HINT);
    this.redraw();
  }

  /** The event at a point of the picture. @param {number} at us @param {number} y CSS pixels @returns {Chosen | null} */
  eventUnder(at, y) {
    const row = this.laid?.rows.findIndex(({ top, height }) => y - AXIS >= top && y - AXIS < top + height) ?? -1;
    if (!this.laid || row < 0) return null;
    const { starts, ends } = this.laid.rows[row];
    const index = eventAt(starts, ends, at, REACH_PX * this.perPixel);
    return index < 0 ? null : { row, index };
  }

  /** To the event that an arrow key leads to. @param {string} key */
  walk(key) {
    const one = this.laid?.rows.length ? neighbour(this.laid.rows, this.chosen, key, this.span.from) : null;
    if (!this.laid || !one) return;
    this.choose(one);
    const { starts, ends } = this.laid.rows[one.row];
    if (ends[one.index] < this.span.from || starts[one.index] > this.span.to) this.#centre(starts[one.index]);
  }

  /** As wide as now. @param {number} at us */
  #centre(at) {
    const half = (this.span.to - this.span.from) / 2;
    this.show({ from: at - half, to: at + half });
  }

  /** Seek what the box has. */
  look() {
    this.#search();
    this.say(this.sought.value ? `${this.hits.length.toLocaleString("en")} events found.` : HINT);
    this.redraw();
  }

  #search() {
    this.hits = this.laid ? search(this.laid.rows, this.sought.value) : [];
    this.hit = -1;
  }

  /** @param {KeyboardEvent} event */
  #soughtOn(event) {
    event.stopPropagation();
    if (event.key === "Escape") {
      this.sought.value = "";
      this.look();
      this.canvas.focus();
    }
    if (event.key === "Enter") this.#next(event.shiftKey ? this.hits.length - 1 : 1);
  }

  /** So many hits further. @param {number} by */
  #next(by) {
    if (!this.hits.length || !this.laid) return;
    this.hit = (this.hit + by) % this.hits.length;
    const [row, index] = this.hits[this.hit];
    const { starts, ends } = this.laid.rows[row];
    if (starts[index] < this.span.from || ends[index] > this.span.to) this.#centre(starts[index]);
    this.choose({ row, index });
    this.say(`${this.hit + 1} of ${this.hits.length}: ${this.readout.textContent}`);
  }

  /** Set a marker at the chosen event or the pointer, or remove the one that is there. */
  mark() {
    const at = this.chosen && this.laid ? this.laid.rows[this.chosen.row].starts[this.chosen.index] : this.pointed;
    this.marks = toggled(this.marks, at, REACH_PX * this.perPixel);
    const [first, last] = this.marks.slice(-2);
    this.say(
      last === undefined ? "Marker set. Set another one to measure the time between." : `${ms((last - first) / 1000)} between the last two markers.`,
    );
    this.redraw();
  }

  clear() {
    this.marks = [];
    this.measured = null;
    this.sought.value = "";
    this.look();
    this.choose(null);
  }

  leave() {
    this.#left = true;
    clearTimeout(this.#timer);
    cancelAnimationFrame(this.#frame);
  }
}
