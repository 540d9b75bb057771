// A "?" beside a figure or a term that says what it means: on hover, by keyboard focus, and at a touch. Of a figure, a click
// (the second one of a touch) leads to its cell.

import { go } from "./address.js";
import { h, prose } from "./dom.js";
import { GLOSSARY } from "./glossary.js";
import { HEADS, QUANTITIES } from "./quantities.js";

/** From the edges of the page, CSS pixels. */
const MARGIN = 8;
/** A view that is drawn later than this has no such cell. */
const PATIENCE_MS = 3000;
const LOOK_MS = 50;

/**
 * @param {string} name of a quantity, or a term of docs/glossary.md
 * @param {string} [title] what is said in place of the name
 * @param {string} [own] what it means here, where that is not what it means in most jobs
 */
export function tip(name, title = name, own = "") {
  const quantity = QUANTITIES.get(name);
  const meaning = own || quantity?.meaning || (GLOSSARY.get(name) ?? "");
  const of = quantity ? `Of: ${quantity.over}.` : "";
  const leads = quantity ? `Its cell: ${VIEW_TITLES.get(quantity.view) ?? quantity.view}${quantity.field && `; in the JSON ${quantity.field}`}.` : "";
  /** @type {HTMLElement | null} */
  let shown = null;
  /** Whether it was shown when the pointer or the key came down. */
  let wasShown = false;
  const button = h("button", {
    type: "button",
    class: "tip",
    "aria-label": [`${title}: ${meaning.replace(/`/g, "")}.`, of, leads].filter(Boolean).join(" "),
    focus: show,
    blur: hide,
    pointerenter: (/** @type {PointerEvent} */ { pointerType }) => pointerType !== "touch" && show(),
    pointerleave: () => button !== document.activeElement && hide(),
    pointerdown: () => (wasShown = shown !== null),
    click,
    keydown: (/** @type {KeyboardEvent} */ { key }) => {
      if (key === "Escape") hide();
      wasShown = shown !== null;
    },
  });

  function click() {
    if (!quantity || !wasShown) show(); // a touch does not always give the focus
    else {
      hide();
      toCell(name, quantity.view);
    }
  }

  function show() {
    if (shown || !button.isConnected) return;
    // The button itself says the same to a screen reader.
    shown = h("div", { class: "tip-text", "aria-hidden": "true" }, h("b", {}, title), h("p", {}, prose(meaning)), of && h("p", {}, of), leads && h("p", { class: "leads" }, leads));
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

/** The views that have cells, as people find them. */
const VIEW_TITLES = new Map([
  ["verdict", "Verdict"],
  ["findings", "Verdict, Findings"],
  ["quality", "Verdict, Data quality"],
  ["budget", "Ranks & steps, Budget"],
  ["ranks", "Ranks & steps, Ranks"],
  ["mesh", "Ranks & steps, Mesh"],
  ["operators", "Compute, Kernels"],
  ["layers", "Compute, Layers"],
  ["communication", "Communication"],
  ["memory", "Memory"],
  ["compare", "History, Compare"],
  ["history", "History, Hours"],
]);

/**
 * Open the view of a figure, and bring its cell to where it shows.
 * @param {string} name of a quantity
 * @param {string} view
 */
function toCell(name, view) {
  const until = performance.now() + PATIENCE_MS;
  const find = () => document.querySelector(`.view.${view} [data-quantity=${JSON.stringify(name)}]`);
  go({ view });
  look();
  function look() {
    const cell = find();
    if (cell) {
      cell.scrollIntoView({ block: "center", inline: "nearest" });
      cell.classList.add("looked-for");
    } else if (performance.now() < until) setTimeout(look, LOOK_MS);
  }
}

/**
 * The name of the quantity that a heading stands for; "" if it stands for none.
 * @param {string} head
 * @param {string} [unit] that the heading does not have itself
 */
export function quantityOf(head, unit) {
  const whole = unit ? `${head}, ${unit}` : head;
  return HEADS.get(whole) ?? HEADS.get(head) ?? HEADS.get(head.replace(/, [^,]+$/, "")) ?? HEADS.get(head.replace(/^[A-Z](?=[a-z])/, (letter) => letter.toLowerCase())) ?? "";
}
