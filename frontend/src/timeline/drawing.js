// The canvas of a timeline. What shows of it on the page is drawn first: of 16 opened ranks that is a third. The rest
// follows once it is at rest, or when the page scrolls.

import { paint, picture } from "../canvas.js";

/** @typedef {import("./draw.js").Part} Part */

const REST_MS = 150;

export class Drawing {
  #frame = 0;
  /** Runs while only a part is drawn. */
  #rest = 0;
  #whole = false;

  /**
   * @param {string} label what it shows, for those who cannot see it
   * @param {(context: CanvasRenderingContext2D, width: number, height: number, colour: (name: string) => string, part: Part | null) => void} draw
   */
  constructor(label, draw) {
    this.canvas = picture("timeline-canvas", label, (context, width, height, colour) => draw(context, width, height, colour, this.#part()));
    this.canvas.tabIndex = 0;
    document.addEventListener("scroll", this.#scrolled, { capture: true, passive: true });
  }

  /** At once. */
  redraw() {
    paint(this.canvas);
  }

  /**
   * With the next frame.
   * @param {() => void} beside what is drawn with it
   */
  soon(beside) {
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => {
      this.redraw();
      beside();
    });
  }

  /** What is to be drawn now; null for all. */
  #part() {
    clearTimeout(this.#rest);
    this.#rest = 0;
    if (this.#whole) return null;
    this.#rest = setTimeout(() => this.#all(), REST_MS);
    const { top, height } = this.canvas.getBoundingClientRect();
    return { top: Math.max(0, -top), bottom: Math.min(height, innerHeight - top) };
  }

  #all() {
    this.#whole = true;
    this.redraw();
    this.#whole = false;
  }

  #scrolled = () => {
    if (this.#rest) this.#all();
  };

  leave() {
    document.removeEventListener("scroll", this.#scrolled, { capture: true });
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#rest);
  }
}
