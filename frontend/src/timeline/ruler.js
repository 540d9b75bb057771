// Times that are measured in a timeline: markers, and a selected range with its statistics.

import { h } from "../dom.js";
import { ms } from "../format.js";
import { openWindow, warmWhenIdle } from "../trace.js";
import { byKernel, byOwner, medianOf } from "./range.js";
import { usAfter } from "./rows.js";
import { widened } from "./scale.js";
import { statistics } from "./statistics.js";
import { toggled } from "./walk.js";

/** @typedef {import("./scale.js").Span} Span */

export class Ruler {
  /** @type {number[]} us */
  marks = [];
  /** @type {Span | null} */
  range = null;

  selected = h("div", { class: "range", "aria-live": "polite" });

  /**
   * @param {import("./panel.js").Panel} panel
   * @param {Span | null} range that a link names
   */
  constructor(panel, range) {
    this.panel = panel;
    this.range = range;
  }

  /** Select a range, or none; the address keeps it. @param {Span | null} range */
  select(range) {
    this.range = range && range.to < range.from ? { from: range.to, to: range.from } : range;
    if (this.range) this.panel.say(`${ms((this.range.to - this.range.from) / 1e3)} measured. Its statistics are beside the picture.`);
    this.panel.keep({ range: this.range ? `${Math.round(this.range.from)},${Math.round(this.range.to)}` : "" });
    this.tell();
    if (this.range && this.panel.opened.length) warmWhenIdle();
    this.panel.redraw();
  }

  /** The range in Perfetto, of the opened ranks. */
  #open() {
    const { range, panel } = this;
    if (!range) return;
    const { start, end } = panel.asking.ends(widened(range, 0.1));
    const seen = panel.asking.ends(range);
    const title = `${panel.run}: ${ms((range.to - range.from) / 1e3)} of ranks ${panel.opened.join(", ")}`;
    openWindow(panel.run, { ranks: [...panel.opened].sort((a, b) => a - b), start, end, seen: [seen.start, seen.end] }, title);
  }

  /** The statistics of the range, as far as what is here tells. */
  tell() {
    const { range, panel } = this;
    const { laid, lanes, opened, origin } = panel;
    if (!laid || !lanes || !range || range.to <= range.from) return this.selected.replaceChildren();
    const owned = byOwner(lanes, usAfter(lanes.start_ns, origin), range);
    const pinned = opened.length ? opened : [owned[0].rank];
    const others = owned.filter(({ rank }) => !pinned.includes(rank));
    const ways = { zoom: () => panel.show(widened(range, 0.05)), open: opened.length ? () => this.#open() : null, close: () => this.select(null) };
    this.selected.replaceChildren(
      ...statistics({ owned, kernels: byKernel(laid.rows, range), length: (range.to - range.from) / 1e3, owners: lanes.owners, pinned, median: medianOf(others, lanes.owners), hidden: laid.hidden, gpu: panel.gpu }, ways).filter((part) => part !== null),
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
