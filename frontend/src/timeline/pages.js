// Which of very many folded ranks show, and the ways to the others.

import { h } from "../dom.js";

/**
 * @param {number} page
 * @param {number} most ranks of a page
 * @param {number} shown
 * @param {number} all
 * @param {(page: number) => void} turn
 * @returns {(Node | string)[]} nothing where one page has all
 */
export function pages(page, most, shown, all, turn) {
  if (all <= most) return [];
  return [
    h("button", { type: "button", disabled: !page, "aria-label": "Previous folded ranks", click: () => turn(page - 1) }, "‹"),
    ` ${shown} of ${all.toLocaleString("en")} folded ranks `,
    h("button", { type: "button", disabled: (page + 1) * most >= all, "aria-label": "More folded ranks", click: () => turn(page + 1) }, "›"),
    " Name a rank or a node above to open it.",
  ];
}
