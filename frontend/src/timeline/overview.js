// The whole record in a strip above the timeline: a thin lane for each rank, and a frame around what shows below.
// x is CSS pixels from the left edge of the lanes, which stand below those of the timeline.

import { paint, picture } from "../canvas.js";
import { fillOf } from "../chart/textures.js";
import { h } from "../dom.js";
import { GUTTER } from "./frame.js";
import { within } from "./scale.js";

/** @typedef {import("./scale.js").Span} Span */

/** Lanes that fit. */
export const MOST_LANES = 12;

export class Overview {
  /** @type {import("./rows.js").RankLanes | null} */
  #lanes = null;
  #shift = 0;
  /** @type {number | null} us from the middle of the frame to where a drag holds it */
  #held = null;

  /**
   * @param {Span} whole
   * @param {() => Span} span what shows below
   * @param {(to: Span) => void} show
   * @param {import("./steps.js").Step[]} steps
   * @param {boolean} gpu whether a GPU computes
   */
  constructor(whole, span, show, steps, gpu) {
    this.whole = whole;
    this.gpu = gpu;
    this.frame = h("div", { class: "overview-frame" });
    this.canvas = picture("timeline-overview", "The whole record; drag the frame to move what shows below", (context, width, height, colour) => this.#draw(context, width, height, colour, steps));
    this.span = span;
    this.element = h("div", { class: "overview" }, this.canvas, h("div", { class: "overview-lanes", style: `left: ${GUTTER}px` }, this.frame));
    const at = (/** @type {PointerEvent} */ event) => {
      const { left, width } = this.canvas.getBoundingClientRect();
      return whole.from + ((event.clientX - left - GUTTER) / Math.max(1, width - GUTTER)) * (whole.to - whole.from);
    };
    const move = (/** @type {PointerEvent} */ event) => {
      const { from, to } = span();
      const centre = at(event) - (this.#held ?? 0);
      show(within({ from: centre - (to - from) / 2, to: centre + (to - from) / 2 }, whole));
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      this.canvas.setPointerCapture(event.pointerId);
      const { from, to } = span();
      this.#held = at(event) > from && at(event) < to ? at(event) - (from + to) / 2 : 0;
      move(event);
    });
    this.canvas.addEventListener("pointermove", (event) => this.#held !== null && move(event));
    for (const end of ["pointerup", "pointercancel"]) this.canvas.addEventListener(end, () => (this.#held = null));
  }

  /**
   * @param {import("./rows.js").RankLanes} lanes
   * @param {number} shift us, of their window after the origin
   */
  take(lanes, shift) {
    this.#lanes = lanes;
    this.#shift = shift;
    paint(this.canvas);
    this.redraw();
  }

  /** The frame follows what shows; the lanes below it stay as they are drawn. */
  redraw() {
    const { from, to } = this.span();
    const share = (/** @type {number} */ at) => (at - this.whole.from) / (this.whole.to - this.whole.from);
    this.frame.style.cssText = `left: ${100 * share(from)}%; width: max(3px, ${100 * (share(to) - share(from))}%)`;
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {number} width
   * @param {number} height
   * @param {(name: string) => string} colour
   * @param {import("./steps.js").Step[]} steps
   */
  #draw(context, width, height, colour, steps) {
    const { whole } = this;
    const x = (/** @type {number} */ at) => GUTTER + ((at - whole.from) / (whole.to - whole.from)) * (width - GUTTER);
    context.font = `11px ${getComputedStyle(context.canvas).fontFamily}`;
    context.textBaseline = "middle";
    context.fillStyle = colour("soft");
    context.fillText("whole record", 0, height / 2 + 6);
    let until = 0;
    for (const { step, from } of steps) {
      const text = `step ${step}`;
      if (x(from) + 4 < until || x(from) + 4 + context.measureText(text).width > width) continue;
      context.fillRect(x(from), 0, 1, height);
      context.fillText(text, x(from) + 4, 7);
      until = x(from) + 12 + context.measureText(text).width;
    }
    const first = Math.min(...steps.map(({ from }) => from));
    const ahead = this.gpu ? "CPU runs ahead of the GPU" : "before the first step";
    if (x(first) - GUTTER > context.measureText(ahead).width + 20) context.fillText(ahead, GUTTER + 4, height / 2 + 6);
    const ranks = this.#lanes?.ranks ?? [];
    const pitch = (height - 16) / Math.max(1, ranks.length);
    const fills = (this.#lanes?.owners ?? []).map((owner) => (owner === "wait" ? fillOf(context, owner, colour) : colour(owner)));
    ranks.forEach(({ owner, start_us, length_us }, row) =>
      owner.forEach((one, i) => {
        context.fillStyle = fills[one];
        const left = x(start_us[i] + this.#shift);
        context.fillRect(left, 15 + row * pitch, Math.max(0.6, x(start_us[i] + length_us[i] + this.#shift) - left), Math.max(1, pitch - (pitch > 3 ? 1 : 0)));
      }),
    );
  }
}
