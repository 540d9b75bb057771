// The pointer on the picture: a drag pans, with Shift it measures, a click chooses, Ctrl and the wheel zoom.

import { ms } from "../format.js";
import { GUTTER } from "./draw.js";
import { moved, zoomed } from "./scale.js";

/** @typedef {import("./scale.js").Span} Span */

/** CSS pixels; what moves less is a click. */
const STILL = 2;

/** @param {import("./panel.js").Panel} panel */
export function followPointer(panel) {
  const { canvas } = panel;
  /** @type {{x: number, span: Span, at: number, moved: boolean} | null} */
  let drag = null;
  const instant = (/** @type {MouseEvent} */ { clientX }) =>
    panel.span.from + (clientX - canvas.getBoundingClientRect().left - GUTTER) * panel.perPixel;

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    drag = { x: event.clientX, span: panel.span, at: instant(event), moved: false };
    panel.measured = event.shiftKey ? { from: drag.at, to: drag.at } : null;
  });
  canvas.addEventListener("pointermove", (event) => {
    panel.pointed = instant(event);
    if (!drag) return;
    drag.moved ||= Math.abs(event.clientX - drag.x) > STILL;
    if (panel.measured) {
      panel.measured.to = panel.pointed;
      panel.redraw();
    } else if (drag.moved) panel.show(moved(drag.span, (drag.x - event.clientX) / Math.max(1, canvas.clientWidth - GUTTER)));
  });
  canvas.addEventListener("pointerup", (event) => {
    const { measured } = panel;
    if (measured) panel.say(`${ms(Math.abs(measured.to - measured.from) / 1000)} measured.`);
    else if (drag && !drag.moved) panel.choose(panel.eventUnder(instant(event), event.clientY - canvas.getBoundingClientRect().top));
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => (drag = null));
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
