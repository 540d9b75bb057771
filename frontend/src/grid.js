// A table that sorts by its heads, filters by words, and saves what it shows as CSV. The address keeps both choices.

import { decimals } from "./format.js";
import { h } from "./dom.js";
import { csv, download } from "./table.js";
import { quantityOf, tip } from "./tips.js";

/** @typedef {string | number | null} Value */
/**
 * @typedef {object} Column
 * @property {string} head
 * @property {string} [unit] of the values that are saved, where the page says it once for all
 * @property {(value: any, most: number) => string} [show] as text, given the largest number of the column; what sorts
 *   and what is saved is the value itself
 * @property {string} [title] what it means
 * @property {string} [quantity] the quantity that its figures are, where the head names another one; "" for none
 * @property {(value: any) => Value} [by] what sorts in its stead
 * @property {(value: any, text: string) => Node | null} [link] what leads on from a cell, with its text; null where nothing does
 * @property {boolean} [bar] whether a bar shows its share of the largest
 */

/** Rows that are drawn at first, and more each time that the end of them comes near. */
const DRAWN = 60;
/** So near, CSS pixels. */
const NEAR = 600;
/** "rank 9" stands before "rank 10". */
const COLLATOR = new Intl.Collator("en", { numeric: true });
/** Browsers let an address change only so often: it waits until nobody types. */
const QUIET_MS = 250;

/**
 * Rows in the order of a column, what is missing last; a column of text ascends first, one of numbers descends.
 * @param {Value[][]} rows
 * @param {number} column
 * @param {boolean} descending
 * @param {(value: any) => Value} [by]
 */
export function ordered(rows, column, descending, by = (value) => value) {
  return rows
    .map((row, i) => ({ row, i, key: row[column] === null ? null : by(row[column]) }))
    .sort((a, b) => {
      const [x, y] = [a.key, b.key];
      if (x === null || y === null) return x === y ? a.i - b.i : x === null ? 1 : -1;
      const less = typeof x === "number" && typeof y === "number" ? x - y : COLLATOR.compare(String(x), String(y));
      return (descending ? -less : less) || a.i - b.i;
    })
    .map(({ row }) => row);
}

/**
 * Rows in whose texts all the words occur.
 * @param {Value[][]} rows
 * @param {string} words
 */
export function filtered(rows, words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (!wanted.length) return rows;
  return rows.filter((row) => {
    const text = row.filter((value) => typeof value === "string").join("\n").toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}

/**
 * The column and direction that an address names, as "-calls"; null where there is no such column.
 * @param {string | undefined} text
 * @param {Column[]} columns
 */
export function sortOf(text, columns) {
  const descending = text?.startsWith("-") ?? false;
  const column = columns.findIndex(({ head }) => head === text?.slice(Number(descending)));
  return column < 0 ? null : { column, descending };
}

/** By digits after the point; to make one takes longer than to use it. */
const FIXED = [0, 1, 2, 3].map((digits) => new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }));

/**
 * A number without its unit, of as many digits as the others of its column, so that the points stand in one line.
 * @param {number} value
 * @param {number} most the largest of the column
 */
export function plain(value, most) {
  if (value === 0) return "0";
  const digits = most >= 999.95 ? 1 : most >= 0.9995 ? 2 : 3;
  const least = 10 ** -digits;
  if (value > 0 && value < least / 2) return `<${decimals(least, digits)}`;
  return FIXED[digits].format(value);
}

/**
 * @param {object} given
 * @param {string} given.title what it is saved as, in a file and in the address
 * @param {Pick<import("./views.js").Shown, "place" | "keep">} given.shown
 * @param {Column[]} given.columns
 * @param {Value[][]} given.rows
 * @param {number} given.sort the column that it is first sorted by
 * @param {boolean} [given.descending]
 * @param {(row: Value[]) => boolean} [given.marked] rows in the colour of the fault
 * @param {string} [given.search] label of the filter; without one there is none
 */
export function grid({ title, shown, columns, rows, sort, descending = true, marked, search }) {
  const most = columns.map((_, i) => rows.reduce((largest, { [i]: value }) => (typeof value === "number" && value > largest ? value : largest), 0));
  const isText = columns.map((_, i) => rows.some((row) => typeof row[i] === "string"));
  const body = h("tbody");
  const note = h("p", { class: "note" });
  let words = shown.place[`${title}-filter`] ?? "";
  ({ column: sort, descending } = sortOf(shown.place[`${title}-sort`], columns) ?? { column: sort, descending });
  let timer = 0;
  /** @type {Value[][]} rows that match, in order */
  let found = [];
  const heads = columns.map(({ head, unit, title: meaning, quantity = quantityOf(head, unit) }, i) => {
    const button = h("button", { type: "button", class: "sort", title: meaning, click: () => by(i) }, head);
    return h("th", { scope: "col", class: isText[i] ? "text" : null, "data-quantity": quantity || null }, quantity ? h("span", { class: "with-tip" }, button, tip(quantity, head)) : button);
  });

  /** @param {number} column */
  function by(column) {
    descending = column === sort ? !descending : !isText[column];
    sort = column;
    shown.keep({ [`${title}-sort`]: `${descending ? "-" : ""}${columns[column].head}` });
    fill();
  }

  /** @param {Event} event */
  function filter({ target }) {
    words = /** @type {HTMLInputElement} */ (target).value;
    fill();
    clearTimeout(timer);
    timer = setTimeout(() => shown.keep({ [`${title}-filter`]: words }), QUIET_MS);
  }

  const current = () => ordered(filtered(rows, words), sort, descending, columns[sort].by);

  function fill() {
    heads.forEach((head, i) => {
      if (i === sort) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    found = current();
    body.replaceChildren();
    drawMore();
  }

  function drawMore() {
    const drawn = body.childElementCount;
    body.append(...found.slice(drawn, drawn + DRAWN).map((row) => h("tr", { class: marked?.(row) ? "affected" : null }, row.map(cell))));
    const isCut = found.length > body.childElementCount;
    const all = `${found.length.toLocaleString("en")} rows: scroll${search ? ", filter," : ""} or download them.`;
    note.textContent = !rows.length ? "None in the traces." : !found.length ? "No row matches the filter." : isCut ? all : "";
  }

  /**
   * @param {Value} value
   * @param {number} i
   */
  function cell(value, i) {
    const text = value === null ? "–" : (columns[i].show?.(value, most[i]) ?? String(value));
    const share = columns[i].bar && most[i] > 0 ? Number(value) / most[i] : 0;
    const attributes = {
      class: [isText[i] && "text", columns[i].bar && "share"].filter(Boolean).join(" ") || null,
      style: columns[i].bar ? `--share: ${decimals(100 * Math.max(0, share), 1)}%` : null,
      title: isText[i] && text.length > 24 ? String(value) : null,
    };
    const inner = columns[i].link?.(value, text) ?? text;
    return i ? h("td", attributes, inner) : h("th", { ...attributes, scope: "row" }, h("span", {}, inner));
  }

  const save = () => download(`${title}.csv`, csv({ heads: columns.map(({ head, unit }) => (unit ? `${head}, ${unit}` : head)), rows: current() }));
  fill();
  const scrolled = (/** @type {Event} */ { currentTarget }) => {
    const { scrollTop, clientHeight, scrollHeight } = /** @type {HTMLElement} */ (currentTarget);
    if (scrollHeight - scrollTop - clientHeight < NEAR && body.childElementCount < found.length) drawMore();
  };
  return h(
    "div",
    { class: "grid" },
    h(
      "div",
      { class: "controls" },
      search && h("label", {}, search, h("input", { type: "search", value: words, input: filter })),
      h("button", { type: "button", class: "save", click: save }, "Download as CSV"),
    ),
    h(
      "div",
      { class: "scroll tall", tabindex: 0, role: "region", "aria-label": title, scroll: scrolled },
      h("table", {}, h("thead", {}, h("tr", {}, heads)), body),
    ),
    note,
  );
}
