// What a timeline shows: a span of the common clock, and some ranks opened, others folded. It asks for the events of the
// span, with as much again at each side, once the span has come to rest. What is chosen, measured and sought in it have
// modules of their own.

import { folded as fold, h } from "../dom.js";
import { count } from "../format.js";
import { affectedRanks, hasGpu } from "../model.js";
import { numbers } from "../table.js";
import { Asking } from "./asking.js";
import { Choice } from "./choice.js";
import { eventAt } from "./cull.js";
import { draw } from "./draw.js";
import { Drawing } from "./drawing.js";
import { HEADS, LISTED, inView } from "./events.js";
import { AXIS, GUTTER } from "./frame.js";
import { MOST_LANES, Overview } from "./overview.js";
import { pages } from "./pages.js";
import { legs } from "./path.js";
import { FOLDED, MOST_OPENED, folded } from "./ranks.js";
import { laidOut, usAfter } from "./rows.js";
import { Ruler } from "./ruler.js";
import { widened, within } from "./scale.js";
import { rangeOf } from "./spots.js";
import { Seek } from "./seek.js";
import { stepAt, stepsOf } from "./steps.js";
import { tell, tellCurve } from "./tooltip.js";

/** @typedef {import("./rows.js").Laid} Laid */
/** @typedef {import("./rows.js").RankLanes} RankLanes */
/** @typedef {import("./scale.js").Span} Span */
/** @typedef {import("./spots.js").Spot} Spot */
/** @typedef {import("./walk.js").Chosen} Chosen */

const QUIET_MS = 150;
const REACH_PX = 3;
const HINT =
  "W S zoom, A D pan, F fits the evidence, N P next and previous gap, ? lists all keys. Click a rank to open or fold it. A dotted line is a last arrival.";

/** Around a piece of evidence. @param {Spot} spot */
export const around = ({ seen }) => widened(seen, 0.15);

export class Panel {
  /** @type {Laid | null} */
  laid = null;
  /** @type {RankLanes | null} of the window that is laid out */
  lanes = null;
  /** Which page of the folded ranks shows. */
  page = 0;

  #failed = false;
  #timer = 0;
  /** The window that was asked for last, µs after the origin. */
  #asked = { from: -Infinity, to: Infinity };

  readout = h("p", { class: "readout", role: "status" }, "Reading the traces…");
  hidden = h("p", { class: "note" });
  listed = h("div");
  tooltip = h("div", { class: "timeline-tip", hidden: true, "aria-hidden": "true" });
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
    this.gpu = hasGpu(diagnosis);
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
    const modules = (diagnosis.layers?.rows ?? []).flatMap(({ path }) => path || []);
    this.seek = new Seek(place.find ?? "", modules, {
      changed: () => this.look(),
      next: (by) => this.choice.next(by),
      left: () => {
        this.seek.box.value = "";
        this.look();
        this.canvas.focus();
      },
    });
    /** Called with the opened ranks when they change. @type {(ranks: number[]) => void} */
    this.changed = () => {};
    /** Where the pointer is, us. */
    this.pointed = (this.span.from + this.span.to) / 2;
    this.choice = new Choice(this, place);
    this.ruler = new Ruler(this, rangeOf(place));
    this.drawing = new Drawing(`Timeline of ${this.run}, all ranks on one clock`, (context, width, height, colour, part) => {
      const { laid, span, steps, zero, path, affected, choice, ruler, seek } = this;
      if (!laid) return;
      const { event: chosen, launch } = choice;
      draw(context, width, height, colour, { laid, span, steps, zero, path, affected, chosen, launch, found: seek.found, marks: ruler.marks, measured: ruler.range, part });
    });
    this.canvas = this.drawing.canvas;
    this.overview = new Overview(whole, () => this.span, (to) => this.show(to), this.steps, this.gpu);
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

  sayHint() {
    this.say(HINT);
  }

  redraw() {
    this.drawing.soon(() => this.overview.redraw());
  }

  /** @param {Span} to */
  show(to) {
    this.span = within(to, this.whole);
    const { from, to: end } = this.span;
    // What arrives for another place would drop the choice that led here.
    if (from < this.#asked.from || end > this.#asked.to) this.asking.stop();
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
    if (!inside || coarse || this.asking.stopped) this.load();
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
    this.#asked = within(widened(this.span, 0.5), this.whole);
    try {
      const told = await this.asking.window(opened, shown, this.#asked);
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
    const chosen = this.choice.found(before, laid);
    this.seek.find(laid, chosen);
    this.canvas.style.height = `${AXIS + laid.height + 4}px`;
    this.hidden.textContent = laid.hidden ? `${count(laid.hidden, "short event")} hidden, zoom in to see them.` : "";
    // What it tells of the chosen event, or of the search, still holds.
    if (!before || this.#failed) this.sayHint();
    this.#failed = false;
    this.choice.keep(chosen);
    this.drawing.redraw();
    this.overview.redraw();
    this.#list();
    this.ruler.tell();
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
    if (!this.laid) return;
    const at = { x, y, width: this.canvas.clientWidth };
    const curve = x > GUTTER && this.laid.curves.find(({ top, height }) => y - AXIS >= top && y - AXIS < top + height);
    if (one) tell(this.tooltip, this.laid, one, this.zero, at);
    else if (curve) tellCurve(this.tooltip, curve, this.pointed, at);
  }

  /** As wide as now. @param {number} at us */
  centre(at) {
    const half = (this.span.to - this.span.from) / 2;
    this.show({ from: at - half, to: at + half });
  }

  /** Seek what the box has. */
  look() {
    this.seek.find(this.laid);
    this.say(this.seek.box.value ? `${this.seek.found.size.toLocaleString("en")} events found.` : HINT);
    this.redraw();
  }

  /** Set a marker at the chosen event or the pointer, or remove the one that is there. */
  mark() {
    const { event } = this.choice;
    this.ruler.mark(event && this.laid ? this.laid.rows[event.row].starts[event.index] : this.pointed, REACH_PX * this.perPixel);
  }

  clear() {
    this.ruler.marks = [];
    this.ruler.select(null);
    this.seek.box.value = "";
    this.look();
    this.choice.choose(null);
  }

  leave() {
    this.asking.leave();
    this.drawing.leave();
    clearTimeout(this.#timer);
  }
}
