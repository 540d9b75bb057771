// Times that are measured in a timeline: markers, and a selected range with its statistics.

import { h } from "../dom.js";
import { ms } from "../format.js";
import { statistics } from "./dock.js";
import { byKernel, byOwner, medianOf } from "./range.js";
import { usAfter } from "./rows.js";
import { toggled } from "./walk.js";

/** @typedef {import("./scale.js").Span} Span */

export class Ruler {
  /** @type {number[]} us */
  marks = [];
  /** @type {Span | null} */
  range = null;

  selected = h("div", { class: "range", "aria-live": "polite" });

  /** @param {import("./panel.js").Panel} panel */
  constructor(panel) {
    this.panel = panel;
  }

  /** Select a range, or none. @param {Span | null} range */
  select(range) {
    this.range = range && range.to < range.from ? { from: range.to, to: range.from } : range;
    if (this.range) this.panel.say(`${ms((this.range.to - this.range.from) / 1e3)} measured. Its statistics are below.`);
    this.tell();
    this.panel.redraw();
  }

  /** The statistics of the range, as far as what is here tells. */
  tell() {
    const { range, panel } = this;
    const { laid, lanes, opened, origin } = panel;
    if (!laid || !lanes || !range || range.to <= range.from) return this.selected.replaceChildren();
    const owned = byOwner(lanes, usAfter(lanes.start_ns, origin), range);
    const pinned = opened.length ? opened : [owned[0].rank];
    const others = owned.filter(({ rank }) => !pinned.includes(rank));
    this.selected.replaceChildren(
      ...statistics({ owned, kernels: byKernel(laid.rows, range), length: (range.to - range.from) / 1e3, owners: lanes.owners, pinned, median: medianOf(others, lanes.owners), hidden: laid.hidden, gpu: panel.gpu }).filter((part) => part !== null),
    );
  }

  /** Set a marker, or remove the one that is there. @param {number} at us @param {number} reach us */
  mark(at, reach) {
    this.marks = toggled(this.marks, at, reach);
    const [first, last] = this.marks.slice(-2);
    this.panel.say(
      last === undefined ? "Marker set. Set another one to measure the time between." : `${ms((last - first) / 1000)} between the last two markers.`,
    );
    this.panel.redraw();
  }
}
