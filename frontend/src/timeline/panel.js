// What a timeline shows: a span of the common clock, some ranks opened and others folded, and what is chosen, sought,
// marked and selected in it. It asks for the events of the span, with as much again at each side, once the span has come
// to rest.

import { folded as fold, h } from "../dom.js";
import { count, ms, ranges } from "../format.js";
import { affectedRanks } from "../model.js";
import { numbers } from "../table.js";
import { about } from "./about.js";
import { Asking } from "./asking.js";
import { eventAt } from "./cull.js";
import { dock, statistics } from "./dock.js";
import { draw } from "./draw.js";
import { Drawing } from "./drawing.js";
import { HEADS, LISTED, inView, sentence } from "./events.js";
import { AXIS, GUTTER } from "./frame.js";
import { nextGap } from "./gaps.js";
import { longestOf, ofOwner, placeOf } from "./longest.js";
import { MOST_LANES, Overview } from "./overview.js";
import { pages } from "./pages.js";
import { legs } from "./path.js";
import { byKernel, byOwner, medianOf } from "./range.js";
import { FOLDED, MOST_OPENED, folded } from "./ranks.js";
import { foundAgain, laidOut, usAfter } from "./rows.js";
import { widened, within } from "./scale.js";
import { Seek } from "./seek.js";
import { stepAt, stepsOf } from "./steps.js";
import { tell } from "./tooltip.js";
import { neighbour, toggled } from "./walk.js";

/** @typedef {import("./rows.js").Laid} Laid */
/** @typedef {import("./rows.js").RankLanes} RankLanes */
/** @typedef {import("./scale.js").Span} Span */
/** @typedef {import("./spots.js").Spot} Spot */
/** @typedef {import("./walk.js").Chosen} Chosen */

const QUIET_MS = 150;
const REACH_PX = 3;
/** A gap that the keys stop at is so wide at least, as it shows. */
const GAP_PX = 2;
const HINT =
  "W S zoom, A D pan, F fits the evidence, N P next and previous gap, ? lists all keys. Click a rank to open or fold it. A dotted line is a last arrival.";

/** Around a piece of evidence. @param {Spot} spot */
export const around = ({ seen }) => widened(seen, 0.15);

export class Panel {
  /** @type {Laid | null} */
  laid = null;
  /** @type {RankLanes | null} of the window that is laid out */
  lanes = null;
  /** @type {Chosen | null} */
  chosen = null;
  /** @type {Chosen | null} the call that launched it, or what it launched */
  launch = null;
  /** @type {number[]} us */
  marks = [];
  /** @type {Span | null} */
  measured = null;
  /** Which page of the folded ranks shows. */
  page = 0;

  #failed = false;
  #timer = 0;

  readout = h("p", { class: "readout", role: "status" }, "Reading the traces…");
  hidden = h("p", { class: "note" });
  listed = h("div");
  docked = h("aside", { class: "dock", "aria-label": "Chosen event" });
  tooltip = h("div", { class: "timeline-tip", hidden: true, "aria-hidden": "true" });
  selected = h("div", { class: "range", "aria-live": "polite" });
  paged = h("p", { class: "paged" });

  /**
   * @param {import("../views.js").Shown} shown
   * @param {Span} whole what there is to show
   * @param {Spot} spot
   * @param {number[]} opened ranks
   * @param {Span} span
   */
  constructor({ diagnosis, views, keep, place }, whole, spot, opened, span) {
    this.run = diagnosis.name;
    this.views = /** @type {import("../model.js").Views} */ (views);
    this.keep = keep;
    this.origin = this.views.origin_ns;
    this.whole = whole;
    this.spot = spot;
    this.opened = opened;
    this.span = within(span, whole);
    this.affected = affectedRanks(diagnosis);
    this.path = legs(diagnosis.critical_path ?? [], this.origin);
    this.asking = new Asking(this.run, this.origin, !this.views.from_digests);
    this.seek = new Seek(place.find ?? "", {
      changed: () => this.look(),
      next: (by) => this.next(by),
      left: () => {
        this.seek.box.value = "";
        this.look();
        this.canvas.focus();
      },
    });
    /** What is to be chosen once it is here: the longest stretch of an owner on a rank, or the longest event found. */
    this.wanted = place.owner || place.find ? { owner: place.owner, rank: Number(place.rank ?? NaN) } : null;
    /** Called with the opened ranks when they change. @type {(ranks: number[]) => void} */
    this.changed = () => {};
    /** Where the pointer is, us. */
    this.pointed = (this.span.from + this.span.to) / 2;
    this.drawing = new Drawing(`Timeline of ${this.run}, all ranks on one clock`, (context, width, height, colour, part) => {
      const { laid, span, steps, zero, path, affected, chosen, launch, seek, marks, measured } = this;
      if (!laid) return;
      const found = new Set(seek.hits.map(([row, index]) => `${row}:${index}`));
      draw(context, width, height, colour, { laid, span, steps, zero, path, affected, chosen, launch, found, marks, measured, part });
    });
    this.canvas = this.drawing.canvas;
    this.canvas.tabIndex = 0;
    this.overview = new Overview(whole, () => this.span, (to) => this.show(to), this.steps);
    this.#docking();
    this.#survey();
  }

  /** Of the rank on top. */
  get steps() {
    return stepsOf(this.views, this.opened[0] ?? this.views.ranks[0]);
  }

  get step() {
    return stepAt(this.steps, this.span);
  }

  /** Where the axis begins, us. */
  get zero() {
    return this.step?.from ?? 0;
  }

  /** The ranks that matter beside the opened ones: affected, or on the critical path of what shows. */
  get matter() {
    const here = this.path.filter(({ from, to }) => to > this.span.from && from < this.span.to);
    return new Set([...this.affected, ...here.map(({ rank }) => rank)]);
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
    this.drawing.soon(() => this.overview.redraw());
  }

  /** @param {Span} to */
  show(to) {
    this.span = within(to, this.whole);
    this.tooltip.hidden = true;
    this.redraw();
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#settle(), QUIET_MS);
  }

  fit() {
    this.show(around(this.spot));
  }

  /** @param {number[]} ranks to open */
  showRanks(ranks) {
    this.opened = ranks;
    this.changed(ranks);
    this.#keepPlace();
    this.load();
    this.#survey();
  }

  /** Open a rank, or fold it. @param {number} rank */
  toggle(rank) {
    const { opened } = this;
    if (this.views.from_digests) return;
    if (opened.includes(rank)) this.showRanks(opened.filter((other) => other !== rank));
    else this.showRanks([...opened.slice(0, MOST_OPENED - 1), rank]);
  }

  /**
   * @param {Spot} spot
   * @param {number[]} opened
   */
  showSpot(spot, opened) {
    this.spot = spot;
    this.opened = opened;
    this.changed(opened);
    this.laid = null;
    this.keep({ evidence: spot.id });
    this.fit();
    this.#survey();
  }

  #keepPlace() {
    const { span, opened } = this;
    this.keep({ from: String(Math.round(span.from)), to: String(Math.round(span.to)), ranks: opened.join(",") });
  }

  /** The span has come to rest: the address keeps it, and what is not here is asked for. */
  #settle() {
    const { laid, span } = this;
    this.#keepPlace();
    const inside = laid && span.from >= laid.from && span.to <= laid.to;
    // Neither a slice nor lanes have their shortest events: zoomed in, they are asked for again.
    const coarse = laid && span.to - span.from < (laid.to - laid.from) / 5;
    if (!inside || coarse) this.load();
    else this.#list();
  }

  /** The whole record of the ranks that matter, for the strip above. */
  async #survey() {
    const { shown } = folded(this.views, this.opened, this.matter, this.page);
    const ranks = [...this.opened, ...shown].slice(0, MOST_LANES);
    const lanes = await this.asking.record(ranks, this.whole);
    if (lanes) this.overview.take(lanes, usAfter(lanes.start_ns, this.origin));
  }

  async load() {
    const { opened } = this;
    const { shown, all } = folded(this.views, opened, this.matter, this.page);
    try {
      const told = await this.asking.window(opened, shown, within(widened(this.span, 0.5), this.whole));
      if (!told) return;
      this.lanes = told.lanes;
      this.#take(laidOut(told.slice, this.origin, told.lanes, opened));
      const turn = (/** @type {number} */ page) => {
        this.page = page;
        this.load();
      };
      this.paged.replaceChildren(...pages(this.page, FOLDED, shown.length, all, turn));
    } catch (error) {
      this.say(error instanceof Error ? error.message : String(error));
      this.#failed = true;
    }
  }

  /** @param {Laid} laid */
  #take(laid) {
    const before = this.laid;
    this.laid = laid;
    const chosen = before && this.chosen && foundAgain(before.rows[this.chosen.row], this.chosen.index, laid.rows);
    this.seek.find(laid, chosen);
    this.canvas.style.height = `${AXIS + laid.height + 4}px`;
    this.hidden.textContent = laid.hidden ? `${count(laid.hidden, "short event")} hidden, zoom in to see them.` : "";
    // What it tells of the chosen event, or of the search, still holds.
    if (!before || this.#failed) this.say(HINT);
    this.#failed = false;
    this.#mark(chosen);
    this.#wish();
    this.drawing.whole();
    this.overview.redraw();
    this.#list();
    this.#range();
  }

  /** Choose what the timeline was opened for, once. */
  #wish() {
    const { laid, wanted, seek, span } = this;
    if (!laid || !wanted) return;
    this.wanted = null;
    const { owner, rank } = wanted;
    const longest = longestOf(laid.rows, owner ? ofOwner(laid.rows, rank, owner) : seek.hits, span);
    if (longest) this.choose(longest);
  }

  #list() {
    const { rows, joined } = /** @type {Laid} */ (this.laid);
    if (!rows.some(({ folded }) => !folded)) return this.listed.replaceChildren(); // lanes have no events
    const table = () => numbers({ title: "timeline" }, { heads: HEADS, rows: inView(rows, joined, this.span, this.zero) });
    const open = this.listed.querySelector("details")?.open ?? false;
    const details = /** @type {HTMLDetailsElement} */ (fold(`The ${LISTED} longest events of this window as a table`, table));
    details.open = open;
    this.listed.replaceChildren(details);
  }

  /** @param {Chosen | null} one */
  choose(one) {
    this.#mark(one);
    this.say(one && this.laid ? sentence(this.laid, one.row, one.index, this.zero) : HINT);
    this.redraw();
  }

  /** @param {Chosen | null} one */
  #mark(one) {
    this.chosen = one;
    this.launch = null;
    const { laid } = this;
    if (laid && one) {
      const { launch, launched } = about(laid, one.row, one.index);
      const other = launch ?? launched;
      if (other) this.launch = placeOf(laid.rows, laid.rows[one.row].rank, other);
    }
    this.#docking();
  }

  #docking() {
    const { laid, chosen, steps } = this;
    if (!laid || !chosen) {
      this.docked.replaceChildren(h("p", { class: "note" }, "Click an event, or reach one by the arrow keys, to see its op, stack and launch here. Shift-drag selects a range."));
      return;
    }
    const { starts, ends, rank } = laid.rows[chosen.row];
    const span = { from: starts[chosen.index], to: ends[chosen.index] };
    this.docked.replaceChildren(
      dock(laid, chosen, stepAt(rank === this.opened[0] ? steps : stepsOf(this.views, rank), span), {
        zoom: () => this.show(widened(span, 0.15)),
        all: (name) => {
          this.seek.box.value = name;
          this.look();
        },
        open: (one) => this.toggle(one),
        close: () => this.choose(null),
      }),
    );
  }

  /** The event at a point of the picture. @param {number} at us @param {number} y CSS pixels @returns {Chosen | null} */
  eventUnder(at, y) {
    const row = this.laid?.rows.findIndex(({ top, height }) => y - AXIS >= top && y - AXIS < top + height) ?? -1;
    if (!this.laid || row < 0) return null;
    const { starts, ends } = this.laid.rows[row];
    const index = eventAt(starts, ends, at, REACH_PX * this.perPixel);
    return index < 0 ? null : { row, index };
  }

  /** The rank whose rows are at a height of the picture. @param {number} y CSS pixels */
  rankUnder(y) {
    return this.laid?.blocks.find(({ top, height }) => y - AXIS >= top && y - AXIS < top + height)?.rank ?? null;
  }

  /**
   * What is under the pointer, beside it.
   * @param {Chosen | null} one
   * @param {number} x CSS pixels
   * @param {number} y
   */
  tell(one, x, y) {
    this.tooltip.hidden = true;
    if (this.laid && one) tell(this.tooltip, this.laid, one, this.zero, { x, y, width: this.canvas.clientWidth });
  }

  /** To the event that an arrow key leads to. @param {string} key */
  walk(key) {
    const one = this.laid?.rows.length ? neighbour(this.laid.rows, this.chosen, key, this.span.from) : null;
    if (one) this.#reach(one);
  }

  /** To the next gap of the chosen event's rank, or of the one on top. @param {1 | -1} direction */
  gap(direction) {
    const { laid, chosen } = this;
    if (!laid?.rows.length) return;
    const row = chosen ? laid.rows[chosen.row] : laid.rows[0];
    const at = chosen ? row.starts[chosen.index] : direction > 0 ? this.span.from : this.span.to;
    const one = nextGap(laid.rows, row.rank, at, direction, GAP_PX * this.perPixel);
    if (one) this.#reach(one);
    else this.say(`Rank ${row.rank} has no ${direction > 0 ? "later" : "earlier"} gap in this window.`);
  }

  /** @param {Chosen} one */
  #reach(one) {
    if (!this.laid) return;
    this.choose(one);
    const { starts, ends } = this.laid.rows[one.row];
    if (ends[one.index] < this.span.from || starts[one.index] > this.span.to) this.#centre((starts[one.index] + ends[one.index]) / 2);
  }

  /** As wide as now. @param {number} at us */
  #centre(at) {
    const half = (this.span.to - this.span.from) / 2;
    this.show({ from: at - half, to: at + half });
  }

  /** Select a range, or none. @param {Span | null} range */
  select(range) {
    this.measured = range && range.to < range.from ? { from: range.to, to: range.from } : range;
    if (this.measured) this.say(`${ms((this.measured.to - this.measured.from) / 1e3)} measured. Its statistics are below.`);
    this.#range();
    this.redraw();
  }

  #range() {
    const { laid, lanes, measured, opened } = this;
    if (!laid || !lanes || !measured || measured.to <= measured.from) return this.selected.replaceChildren();
    const owned = byOwner(lanes, usAfter(lanes.start_ns, this.origin), measured);
    const pinned = opened.length ? opened : [owned[0].rank];
    const others = owned.filter(({ rank }) => !pinned.includes(rank));
    this.selected.replaceChildren(
      ...statistics({ owned, kernels: byKernel(laid.rows, measured), length: (measured.to - measured.from) / 1e3, owners: lanes.owners, pinned, median: medianOf(others, lanes.owners), hidden: laid.hidden }).filter((part) => part !== null),
    );
  }

  /** Seek what the box has. */
  look() {
    this.seek.find(this.laid);
    this.say(this.seek.box.value ? `${this.seek.hits.length.toLocaleString("en")} events found.` : HINT);
    this.redraw();
  }

  /** To the next hit, or the one before. @param {1 | -1} by */
  next(by) {
    const one = this.laid && this.seek.step(by);
    if (!this.laid || !one) return;
    const { starts, ends } = this.laid.rows[one.row];
    if (starts[one.index] < this.span.from || ends[one.index] > this.span.to) this.#centre(starts[one.index]);
    this.choose(one);
    this.say(`${this.seek.hit + 1} of ${this.seek.hits.length}: ${this.readout.textContent}`);
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
    this.select(null);
    this.seek.box.value = "";
    this.look();
    this.choose(null);
  }

  leave() {
    this.asking.leave();
    this.drawing.leave();
    clearTimeout(this.#timer);
  }
}
