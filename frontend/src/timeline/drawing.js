// The canvas of a timeline. While it moves, only what shows of it on the page is drawn: of 16 opened ranks that is a
// third. The rest follows once it is at rest, or when the page scrolls.

import { paint, picture } from "../canvas.js";

/** @typedef {import("./draw.js").Part} Part */

const REST_MS = 150;

export class Drawing {
  #frame = 0;
  /** Runs while only a part is drawn. */
  #rest = 0;
  /** @type {Part | null} */
  #part = null;

  /**
   * @param {string} label what it shows, for those who cannot see it
   * @param {(context: CanvasRenderingContext2D, width: number, height: number, colour: (name: string) => string, part: Part | null) => void} draw
   */
  constructor(label, draw) {
    this.canvas = picture("timeline-canvas", label, (context, width, height, colour) => draw(context, width, height, colour, this.#part));
    document.addEventListener("scroll", this.#scrolled, { capture: true, passive: true });
  }

  /** All of it, at once. */
  whole() {
    clearTimeout(this.#rest);
    this.#rest = 0;
    paint(this.canvas);
  }

  /**
   * What shows of it, with the next frame.
   * @param {() => void} [beside] what is drawn with it
   */
  soon(beside) {
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => {
      clearTimeout(this.#rest);
      this.#rest = setTimeout(() => this.whole(), REST_MS);
      this.#part = this.#onPage();
      paint(this.canvas);
      this.#part = null;
      beside?.();
    });
  }

  /** @returns {Part} */
  #onPage() {
    const { top, height } = this.canvas.getBoundingClientRect();
    return { top: Math.max(0, -top), bottom: Math.min(height, innerHeight - top) };
  }

  #scrolled = () => {
    if (this.#rest) this.whole();
  };

  leave() {
    document.removeEventListener("scroll", this.#scrolled, { capture: true });
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#rest);
  }
}
