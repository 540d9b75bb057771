// The pointer on the picture: a drag pans, with Shift it selects a range; a click chooses an event, and opens or folds a
// rank at its name or its folded lane; Ctrl and the wheel zoom. Two fingers zoom and pan at once.

import { GUTTER } from "./frame.js";
import { moved, pinched, zoomed } from "./scale.js";

/** @typedef {import("./scale.js").Span} Span */

/** CSS pixels; what moves less is a click. */
const STILL = 2;

/** @param {import("./panel.js").Panel} panel */
export function followPointer(panel) {
  const { canvas } = panel;
  /** @type {{x: number, span: Span, at: number, moved: boolean} | null} */
  let drag = null;
  /** Where each finger is, x on the page. @type {Map<number, number>} */
  const fingers = new Map();
  /** The span when the second finger came, and where both were. @type {{span: Span, at: [number, number]} | null} */
  let pinch = null;
  const edge = () => canvas.getBoundingClientRect().left + GUTTER;
  const both = () => /** @type {[number, number]} */ ([...fingers.values()].slice(0, 2).map((x) => x - edge()));
  const instant = (/** @type {MouseEvent} */ { clientX }) =>
    panel.span.from + (clientX - canvas.getBoundingClientRect().left - GUTTER) * panel.perPixel;

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    if (event.pointerType === "touch") fingers.set(event.pointerId, event.clientX);
    if (fingers.size === 2) {
      pinch = { span: panel.span, at: both() };
      drag = null;
      return;
    }
    drag = { x: event.clientX, span: panel.span, at: instant(event), moved: false };
    panel.ruler.range = event.shiftKey ? { from: drag.at, to: drag.at } : null;
  });
  canvas.addEventListener("pointermove", (event) => {
    if (fingers.has(event.pointerId)) fingers.set(event.pointerId, event.clientX);
    if (pinch) {
      panel.show(pinched(pinch.span, Math.max(1, canvas.clientWidth - GUTTER), pinch.at, both()));
      return;
    }
    panel.pointed = instant(event);
    if (!drag) {
      const { left, top } = canvas.getBoundingClientRect();
      const [x, y] = [event.clientX - left, event.clientY - top];
      panel.tell(x > GUTTER ? panel.eventUnder(panel.pointed, y) : null, x, y);
      return;
    }
    panel.tell(null, 0, 0);
    drag.moved ||= Math.abs(event.clientX - drag.x) > STILL;
    if (panel.ruler.range) {
      panel.ruler.range.to = panel.pointed;
      panel.redraw();
    } else if (drag.moved) panel.show(moved(drag.span, (drag.x - event.clientX) / Math.max(1, canvas.clientWidth - GUTTER)));
  });
  const lifted = (/** @type {PointerEvent} */ event) => {
    fingers.delete(event.pointerId);
    if (fingers.size < 2) pinch = null;
  };
  canvas.addEventListener("pointerup", (event) => {
    const pinching = pinch !== null;
    lifted(event);
    if (pinching) return;
    if (panel.ruler.range) panel.ruler.select(panel.ruler.range);
    else if (drag && !drag.moved) click(panel, event, instant(event));
    drag = null;
  });
  canvas.addEventListener("pointerleave", () => panel.tell(null, 0, 0));
  canvas.addEventListener("pointercancel", (event) => {
    lifted(event);
    drag = null;
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      panel.show(zoomed(panel.span, instant(event), 1.002 ** event.deltaY));
    },
    { passive: false },
  );
}

/**
 * @param {import("./panel.js").Panel} panel
 * @param {PointerEvent} event
 * @param {number} at us
 */
function click(panel, { clientX, clientY }, at) {
  const { left, top } = panel.canvas.getBoundingClientRect();
  const [x, y] = [clientX - left, clientY - top];
  const rank = panel.rankUnder(y);
  const one = x > GUTTER ? panel.eventUnder(at, y) : null;
  if (rank !== null && (x <= GUTTER || (one && panel.laid?.rows[one.row].folded))) panel.toggle(rank);
  else panel.choice.choose(one);
}
