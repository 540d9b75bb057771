// The numbers behind a picture: a table to read, and all of it as CSV.

import { decimals } from "./format.js";
import { h } from "./dom.js";
import { quantityOf, tip } from "./tips.js";

/** @typedef {import("./views.js").Table} Table */

/** More rows than this are not for reading; the CSV has them. */
const READABLE = 500;

/**
 * @param {{title: string}} view
 * @param {Table} numbers
 */
export function numbers({ title }, { heads, rows, meanings }) {
  const save = () => download(`${title.toLowerCase().replace(/ /g, "_")}.csv`, csv({ heads, rows }));
  return h(
    "div",
    { class: "numbers" },
    table(
      heads,
      rows.slice(0, READABLE).map((row) => row.map(cell)),
      title,
      meanings,
    ),
    rows.length > READABLE &&
      h("p", { class: "note" }, `The first ${READABLE} of ${rows.length.toLocaleString("en")} rows; the file has all.`),
    h("button", { type: "button", class: "save", click: save }, "Download as CSV"),
  );
}

/** @param {string | number | null} value */
export function cell(value) {
  if (value === null) return "–";
  if (typeof value === "string" || Number.isInteger(value)) return String(value);
  return decimals(value, Math.abs(value) >= 100 ? 1 : 3);
}

/**
 * As RFC 4180 has it. A text that a spreadsheet would take for a formula is kept from that with an apostrophe.
 * @param {Table} table
 */
export function csv({ heads, rows }) {
  const quoted = (/** @type {string | number | null} */ value) => {
    if (value === null) return "";
    if (typeof value === "number") return String(value);
    const harmless = /^[\t\r\n]|^[\s\p{C}]*[=+\-@＝＋－＠]/u.test(value) ? `'${value}` : value;
    return /[",;\r\n]/.test(harmless) ? `"${harmless.replace(/"/g, '""')}"` : harmless;
  };
  return [heads, ...rows].map((row) => `${row.map(quoted).join(",")}\r\n`).join("");
}

/**
 * @param {string} name
 * @param {string} text
 */
export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  h("a", { href: url, download: name }).click();
  URL.revokeObjectURL(url);
}

/**
 * A table of numbers with a heading row and a heading column.
 * @param {string[]} heads
 * @param {(string | Node)[][]} rows the first cell of each names the row
 * @param {string} label what it is a table of
 * @param {Map<string, string>} [meanings] as of `Table`
 */
export function table(heads, rows, label, meanings) {
  const cells = (/** @type {(string | Node)[]} */ row) =>
    row.map((cell, i) => (i ? h("td", {}, cell) : h("th", { scope: "row", "data-quantity": (typeof cell === "string" && quantityOf(cell)) || null }, cell)));
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": `Table: ${label}` },
    h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          heads.map((head) => {
            const quantity = quantityOf(head);
            return h("th", { scope: "col", "data-quantity": quantity || null }, quantity ? h("span", { class: "with-tip" }, h("span", {}, head), tip(quantity, head, meanings?.get(head))) : head);
          }),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) => h("tr", {}, cells(row))),
      ),
    ),
  );
}
