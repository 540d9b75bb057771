// The whole record in a strip above the timeline: a thin lane for each rank, and a frame around what shows below.
// x is CSS pixels from the left edge of the lanes, which stand below those of the timeline.

import { hatch, paint, picture } from "../canvas.js";
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
   */
  constructor(whole, span, show, steps) {
    this.whole = whole;
    this.canvas = picture("timeline-overview", "The whole record; drag the frame to move what shows below", (context, width, height, colour) => {
      const x = (/** @type {number} */ at) => GUTTER + ((at - whole.from) / (whole.to - whole.from)) * (width - GUTTER);
      context.font = `11px ${getComputedStyle(context.canvas).fontFamily}`;
      context.textBaseline = "middle";
      context.fillStyle = colour("soft");
      context.fillText("whole record", 0, height / 2 + 6);
      let until = 0;
      for (const { step, from } of steps) {
        context.fillRect(x(from), 0, 1, height);
        const text = `step ${step}`;
        if (x(from) + 4 < until || x(from) + 4 + context.measureText(text).width > width) continue;
        context.fillText(text, x(from) + 4, 7);
        until = x(from) + 12 + context.measureText(text).width;
      }
      const first = Math.min(...steps.map(({ from }) => from));
      const ahead = "CPU runs ahead of the GPU";
      if (x(first) - GUTTER > context.measureText(ahead).width + 20) context.fillText(ahead, GUTTER + 4, height / 2 + 6);
      const ranks = this.#lanes?.ranks ?? [];
      const pitch = (height - 16) / Math.max(1, ranks.length);
      const fills = (this.#lanes?.owners ?? []).map((owner) => (owner === "wait" ? hatch(context, colour) : colour(owner)));
      ranks.forEach(({ owner, start_us, length_us }, row) =>
        owner.forEach((one, i) => {
          context.fillStyle = fills[one];
          const left = x(start_us[i] + this.#shift);
          context.fillRect(left, 15 + row * pitch, Math.max(0.6, x(start_us[i] + length_us[i] + this.#shift) - left), Math.max(1, pitch - (pitch > 3 ? 1 : 0)));
        }),
      );
      const [left, right] = [x(span().from), x(span().to)];
      context.fillStyle = colour("card");
      context.globalAlpha = 0.55;
      context.fillRect(GUTTER, 14, Math.max(0, left - GUTTER), height);
      context.fillRect(right, 14, Math.max(0, width - right), height);
      context.globalAlpha = 1;
      context.strokeStyle = colour("accent");
      context.lineWidth = 1.5;
      context.strokeRect(left, 14, Math.max(3, right - left - 1), height - 15);
    });
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
  }

  redraw() {
    paint(this.canvas);
  }
}
