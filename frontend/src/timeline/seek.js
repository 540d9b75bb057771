// The search of a timeline: what the box seeks, which events match, and which of these is chosen.

import { h } from "../dom.js";
import { count } from "../format.js";
import { search } from "./search.js";

/** @typedef {import("./rows.js").Laid} Laid */
/** @typedef {import("./search.js").Hit} Hit */
/** @typedef {import("./walk.js").Chosen} Chosen */

export class Seek {
  /** @type {Hit[]} */
  hits = [];
  /** `row:event` of each event of a hit. @type {Set<string>} */
  found = new Set();
  /** Which of the hits is chosen; -1 for none. */
  hit = -1;

  /**
   * @param {string} text to begin with
   * @param {string[]} modules paths of the model's modules, which the box offers
   * @param {{changed: () => void, next: (by: 1 | -1) => void, left: () => void}} ways called when the text changes, on Enter,
   *   and on Escape
   */
  constructor(text, modules, { changed, next, left }) {
    this.counted = h("span", { class: "hits", role: "status" });
    this.box = /** @type {HTMLInputElement} */ (
      h("input", { type: "search", list: modules.length ? "timeline-modules" : null, placeholder: modules.length ? "kernel, op, module" : "kernel, op, all_reduce", "aria-label": "Search", value: text, input: changed })
    );
    this.offered = h("datalist", { id: "timeline-modules" }, modules.map((path) => h("option", { value: path })));
    this.box.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Escape") left();
      if (event.key === "Enter") next(event.shiftKey ? -1 : 1);
    });
  }

  /**
   * @param {Laid | null} laid
   * @param {Chosen | null} [chosen] that is chosen still, if it matches
   */
  find(laid, chosen = null) {
    this.hits = laid ? search(laid.rows, this.box.value, laid.joined) : [];
    this.found = new Set(this.hits.flatMap(({ row, first, last }) => Array.from({ length: last - first + 1 }, (_, i) => `${row}:${first + i}`)));
    this.hit = chosen ? this.hits.findIndex(({ row, first, last }) => row === chosen.row && first <= chosen.index && chosen.index <= last) : -1;
    this.#count();
  }

  /**
   * The next match, or the one before.
   * @param {1 | -1} by
   * @returns {Hit | null}
   */
  step(by) {
    if (!this.hits.length) return null;
    this.hit = this.hit < 0 && by < 0 ? this.hits.length - 1 : (this.hit + by + this.hits.length) % this.hits.length;
    this.#count();
    return this.hits[this.hit];
  }

  #count() {
    const { hits, hit, box } = this;
    this.counted.textContent = !box.value.trim() ? "" : hits.length ? `${hit < 0 ? "" : `${(hit + 1).toLocaleString("en")} of `}${count(hits.length, "hit")}` : "no hit";
  }
}
