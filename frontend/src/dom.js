// Building the page. Everything from a trace is untrusted: text goes in as text nodes, never as markup.

/** @typedef {Node | string | null | undefined | false} Child */

/**
 * An element with attributes and children. `class`, `title`, `aria-...` are attributes; a function is a listener
 * for the event that its key names; null, undefined and false leave an attribute out.
 * @param {string} tag
 * @param {Record<string, string | number | boolean | null | undefined | ((event: any) => void)>} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElement}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (key === "style")
      element.style.cssText = String(value); // as an attribute, a strict CSP would block it
    else if (value === true) element.setAttribute(key, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, String(value));
  }
  for (const child of children.flat()) {
    if (child) element.append(typeof child === "string" ? upright(child) : child);
  }
  return element;
}

/**
 * An element of a picture, with a text in it.
 * @param {string} tag
 * @param {Record<string, string | number>} [attributes]
 * @param {string} [text]
 */
export function svg(tag, attributes = {}, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  if (text) element.textContent = text;
  return element;
}

/**
 * A text that does not turn the direction of what stands behind it.
 * @param {string} text
 */
const upright = (text) => text.replace(/[\u202a-\u202e\u2066-\u2069]/g, "\ufffd");

/** A number before its unit. */
const BEFORE_UNIT = /(\d) (?=(?:[mµn]?s|%|[kMGT]?B(?:\/s)?)(?!\w))/g;

/** The sign of a number, as the pictures and tables have it. */
const MINUS = /(?<=[\s(])-(?=\d)/g;

/**
 * The doctor's own sentences as nodes: what stands between backticks becomes code, and no line ends between a number and
 * its unit.
 * @param {string} text
 * @returns {Node[]}
 */
export function prose(text) {
  return text.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : document.createTextNode(upright(part).replace(BEFORE_UNIT, "$1\u00a0").replace(MINUS, "−"))));
}

/**
 * A text whose long names may go on in the next line after "_" or "/", and not within a word.
 * @param {string} text
 * @returns {Child[]}
 */
export const breakable = (text) => text.split(/(?<=\w[_/])(?=\w)/).flatMap((part, i) => (i ? [h("wbr"), part] : [part]));

/**
 * A titled card.
 * @param {string} title
 * @param {...(Child | Child[])} children
 */
export function card(title, ...children) {
  return h("section", { class: "card" }, h("h2", {}, title), ...children);
}

/**
 * A part of the page that is built when it is first opened.
 * @param {string} label
 * @param {() => Node} build
 */
export function folded(label, build) {
  const details = h("details", { class: "folded" }, h("summary", {}, label));
  details.addEventListener("toggle", () => details.append(build()), { once: true });
  return details;
}

/**
 * A part of the page that is built once it comes near what shows.
 * @param {() => (Node | null)[]} build
 * @param {boolean | undefined} atOnce whether it is built now: it is small, or for paper
 */
export function nearby(build, atOnce) {
  const body = h("div");
  const fill = () => body.replaceChildren(...build().filter((part) => part !== null));
  if (atOnce) {
    fill();
    return body;
  }
  const seen = new IntersectionObserver(
    (entries) => {
      if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
      seen.disconnect();
      fill();
    },
    /** @type {IntersectionObserverInit} */ ({ rootMargin: NEAR, scrollMargin: NEAR }),
  );
  seen.observe(body);
  return body;
}

/** So near to what shows, whether the page scrolls or a part of it. */
const NEAR = "400px";

/**
 * Code with a button that copies it.
 * @param {string} code
 */
export function copyable(code) {
  return h("div", { class: "code" }, h("pre", { tabindex: 0 }, code), copyButton(code));
}

/** @param {string} text */
export function copyButton(text) {
  const button = copying("Copy", () => text, "Select and copy by hand");
  button.classList.add("copy-code");
  return button;
}

/**
 * A button that copies a text.
 * @param {string} label
 * @param {() => string | Promise<string>} text
 * @param {string} refused what it says where the browser does not allow that
 */
export function copying(label, text, refused) {
  const button = h("button", { type: "button", click: copy }, label);
  async function copy() {
    const copied = await Promise.resolve(text()).then(toClipboard, () => false);
    button.textContent = copied ? "Copied" : refused;
    setTimeout(() => (button.textContent = label), 4000);
  }
  return button;
}

/**
 * @param {string} text
 * @returns {Promise<boolean>} whether it was copied
 */
async function toClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // A page served over plain HTTP from another host (--bind_all) has no clipboard API.
    const area = /** @type {HTMLTextAreaElement} */ (h("textarea", { class: "offscreen", "aria-hidden": "true" }));
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}
