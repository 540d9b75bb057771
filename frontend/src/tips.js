// A "?" beside a term that says what it means: on hover, by keyboard focus, and at a touch.

import { h, prose } from "./dom.js";
import { GLOSSARY } from "./glossary.js";

/** From the edges of the page, CSS pixels. */
const MARGIN = 8;

/**
 * @param {string} term of docs/glossary.md
 */
export function tip(term) {
  const meaning = GLOSSARY.get(term) ?? "";
  /** @type {HTMLElement | null} */
  let shown = null;
  const button = h("button", {
    type: "button",
    class: "tip",
    "aria-label": `${term}: ${meaning.replace(/`/g, "")}`,
    focus: show,
    blur: hide,
    pointerenter: show,
    pointerleave: () => button !== document.activeElement && hide(),
    click: show, // a touch does not always give the focus
    keydown: (/** @type {KeyboardEvent} */ { key }) => key === "Escape" && hide(),
  });

  function show() {
    if (shown || !button.isConnected) return;
    // The button itself says the same to a screen reader.
    shown = h("p", { class: "tip-text", "aria-hidden": "true" }, h("b", {}, term), " ", prose(meaning));
    document.body.append(shown);
    const { left, bottom, top } = button.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = shown;
    const below = bottom + MARGIN / 2;
    shown.style.left = `${Math.max(MARGIN, Math.min(left, innerWidth - width - MARGIN))}px`;
    shown.style.top = `${below + height > innerHeight ? top - height - MARGIN / 2 : below}px`;
    addEventListener("scroll", hide, { capture: true, once: true });
    addEventListener("pointerdown", elsewhere, { capture: true });
    addEventListener("hashchange", hide, { once: true });
  }

  function hide() {
    shown?.remove();
    shown = null;
    removeEventListener("scroll", hide, { capture: true });
    removeEventListener("pointerdown", elsewhere, { capture: true });
    removeEventListener("hashchange", hide);
  }

  /** @param {PointerEvent} event */
  function elsewhere({ target }) {
    if (target !== button) hide();
  }

  return button;
}
