// The chosen event of a timeline: what is known of it beside the picture, what launched it, and the ways to the next one.

import { h } from "../dom.js";
import { about } from "./about.js";
import { dock } from "./dock.js";
import { ofModule, sentence } from "./events.js";
import { nextGap } from "./gaps.js";
import { longestOf, ofOwner, placeOf } from "./longest.js";
import { foundAgain } from "./rows.js";
import { widened } from "./scale.js";
import { stepAt, stepsOf } from "./steps.js";
import { neighbour } from "./walk.js";

/** @typedef {import("./rows.js").Laid} Laid */
/** @typedef {import("./walk.js").Chosen} Chosen */

/** A gap that the keys stop at is so wide at least, as it shows. */
const GAP_PX = 2;

export class Choice {
  /** @type {Chosen | null} */
  event = null;
  /** @type {Chosen | null} the call that launched it, or what it launched */
  launch = null;

  docked = h("aside", { class: "dock", "aria-label": "Chosen event" });

  /**
   * @param {import("./panel.js").Panel} panel
   * @param {import("../address.js").Place} place
   */
  constructor(panel, place) {
    this.panel = panel;
    /** What is to be chosen once it is here: the longest stretch of an owner on a rank, or the longest event found. */
    this.wanted = place.owner || place.find ? { owner: place.owner, rank: Number(place.rank ?? NaN) } : null;
    this.#docking();
  }

  /** @param {Chosen | null} one */
  choose(one) {
    const { panel } = this;
    this.#mark(one);
    if (one && panel.laid) panel.say(sentence(panel.laid, one.row, one.index, panel.zero));
    else panel.sayHint();
    panel.redraw();
  }

  /**
   * The chosen event in other rows; null where it is not there.
   * @param {Laid | null} before
   * @param {Laid} laid
   */
  found(before, laid) {
    return before && this.event && foundAgain(before.rows[this.event.row], this.event.index, laid.rows);
  }

  /** Rows are here in which the chosen event is this one. @param {Chosen | null} one */
  keep(one) {
    this.#mark(one);
    const { panel, wanted } = this;
    if (!panel.laid || !wanted) return;
    this.wanted = null;
    const { rows } = panel.laid;
    const longest = longestOf(rows, wanted.owner ? ofOwner(rows, wanted.rank, wanted.owner) : panel.seek.hits, panel.span);
    if (longest) this.choose(longest);
  }

  /** @param {Chosen | null} one */
  #mark(one) {
    this.event = one;
    this.launch = null;
    const { laid } = this.panel;
    if (laid && one) {
      const { launch, launched } = about(laid, one.row, one.index);
      const other = launch ?? launched;
      if (other) this.launch = placeOf(laid.rows, laid.rows[one.row].rank, other);
    }
    this.#docking();
  }

  #docking() {
    const { panel, event } = this;
    const { laid } = panel;
    if (!laid || !event) {
      this.docked.replaceChildren(h("p", { class: "note" }, "Click an event, or reach one by the arrow keys, to see its op, stack and launch here. Shift-drag selects a range."));
      return;
    }
    const { starts, ends, rank } = laid.rows[event.row];
    const span = { from: starts[event.index], to: ends[event.index] };
    this.docked.replaceChildren(
      dock(laid, event, stepAt(rank === panel.opened[0] ? panel.steps : stepsOf(panel.views, rank), span), {
        zoom: () => panel.show(widened(span, 0.15)),
        all: (name) => {
          panel.seek.box.value = name;
          panel.look();
        },
        open: (one) => panel.toggle(one),
        close: () => this.choose(null),
      }, panel.gpu),
    );
  }

  /** To the event that an arrow key leads to. @param {string} key */
  walk(key) {
    const { laid, span } = this.panel;
    const one = laid?.rows.length ? neighbour(laid.rows, this.event, key, span.from) : null;
    if (one) this.#reach(one);
  }

  /** To the next gap of the chosen event's rank, or of the one on top. @param {1 | -1} direction */
  gap(direction) {
    const { event, panel } = this;
    const { laid, span } = panel;
    if (!laid?.rows.length) return;
    const row = event ? laid.rows[event.row] : laid.rows[0];
    const at = event ? row.starts[event.index] : direction > 0 ? span.from : span.to;
    const one = nextGap(laid.rows, row.rank, at, direction, GAP_PX * panel.perPixel);
    if (one) this.#reach(one);
    else panel.say(`Rank ${row.rank} has no ${direction > 0 ? "later" : "earlier"} gap in this window.`);
  }

  /** @param {Chosen} one */
  #reach(one) {
    const { laid, span } = this.panel;
    if (!laid) return;
    this.choose(one);
    const { starts, ends } = laid.rows[one.row];
    const [from, to] = [starts[one.index], ends[one.index]];
    if (to < span.from || from > span.to) this.panel.centre((from + to) / 2);
  }

  /** To the next hit of the search, or the one before; where this window has none, the whole step shows. @param {1 | -1} by */
  next(by) {
    const { panel } = this;
    const { laid, span, seek, step } = panel;
    const hit = laid && seek.step(by);
    if (!laid || !hit) {
      if (laid && step && seek.box.value.trim() && (span.from > step.from || span.to < step.to)) panel.show(widened(step, 0.02));
      return;
    }
    const { starts, ends } = laid.rows[hit.row];
    const sought = { from: starts[hit.first], to: ends[hit.last] };
    this.choose({ row: hit.row, index: hit.first });
    if (hit.module) panel.say(ofModule(laid, hit, panel.zero));
    const [inside, wider] = [sought.from >= span.from && sought.to <= span.to, sought.to - sought.from > span.to - span.from];
    if (hit.module && wider) panel.show(widened(sought, 0.15));
    else if (!inside) panel.centre(hit.module ? (sought.from + sought.to) / 2 : sought.from);
  }
}
