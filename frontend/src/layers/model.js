// The rows of modules as a tree, and where each is drawn; pure. Rows stand in order: each is followed by those within it.

/** @typedef {import("../../schema.js").LayerRow} LayerRow */

/**
 * What a module's time is spent in: field, name, and the owner whose colour it has.
 * @type {{of: keyof LayerRow, name: string, colour: string}[]}
 */
export const PARTS = [
  { of: "forward_ms", name: "forward", colour: "compute" },
  { of: "backward_ms", name: "backward", colour: "input" },
  { of: "recomputed_ms", name: "recomputed", colour: "alloc" },
  { of: "other_ms", name: "outside forward and backward", colour: "copy" },
  { of: "communication_ms", name: "exposed communication and wait", colour: "transfer" },
  { of: "idle_ms", name: "GPU idle", colour: "dispatch" },
];

/** Fewer modules side by side are no layers. */
const SEVERAL = 3;
/** A name that ends with a number, and what is before it. */
const NUMBERED = /^(|.*[.\s_])\d+$/;

/** @param {Pick<LayerRow, "path">} row */
export const nameOf = ({ path }) => path.slice(path.lastIndexOf(".") + 1) || "step";

/** A path of so many letters stands whole in a table. */
const LETTERS = 60;

/**
 * A path, where it is long with its end alone, in which modules differ: "…Owlv2EncoderLayer_3.Owlv2MLP_3".
 * @param {string} path
 */
export function shortPath(path) {
  const parts = path.split(".");
  while (parts.length > 2 && parts.join(".").length > LETTERS) parts.shift();
  const short = parts.join(".");
  return short === path ? path : `…${short}`;
}

/**
 * What all names begin with, up to their numbers: "Owlv2EncoderLayer_" of "Owlv2EncoderLayer_0" and the like.
 * @param {string[]} names
 */
export function begun(names) {
  const starts = names.map((name) => name.replace(/\d+$/, ""));
  return names.length > 1 && starts.every((start) => start === starts[0]) && names.every((name) => name !== starts[0]) ? starts[0] : "";
}

/**
 * Index of the row around each; -1 for the whole step.
 * @param {Pick<LayerRow, "level">[]} rows
 */
export function parents(rows) {
  /** @type {number[]} */
  const open = [];
  return rows.map(({ level }, i) => {
    open.length = level;
    const parent = open.length ? open[open.length - 1] : -1;
    open.push(i);
    return parent;
  });
}

/** @typedef {{index: number, depth: number, from: number, share: number}} Box `from` and `share` of the whole width */

/**
 * The rows within one and itself, as boxes below each other; siblings stand side by side from their parent's left edge.
 * Where medians of children add up to more than their parent's, they are narrower.
 * @param {Pick<LayerRow, "level" | "step_ms">[]} rows
 * @param {number} root
 * @returns {Box[]}
 */
export function boxes(rows, root) {
  const parent = parents(rows);
  const sums = rows.map(() => 0);
  rows.forEach(({ step_ms }, i) => parent[i] >= 0 && (sums[parent[i]] += step_ms));
  /** @type {Map<number, Box & {next: number}>} */
  const placed = new Map([[root, { index: root, depth: 0, from: 0, share: 1, next: 0 }]]);
  for (let i = root + 1; i < rows.length && rows[i].level > rows[root].level; i++) {
    const around = placed.get(parent[i]);
    if (!around) continue;
    const whole = Math.max(rows[parent[i]].step_ms, sums[parent[i]]);
    const share = whole > 0 ? (around.share * rows[i].step_ms) / whole : 0;
    placed.set(i, { index: i, depth: around.depth + 1, from: around.next, share, next: around.next });
    around.next += share;
  }
  return [...placed.values()].map(({ index, depth, from, share }) => ({ index, depth, from, share }));
}

/**
 * The model's layers: modules of one kind within one, as "Block_0" to "Block_7", where most of the step's time in numbered ones is.
 * [] if there are none.
 * @param {LayerRow[]} rows
 */
export function layersOf(rows) {
  const parent = parents(rows);
  /** @type {Map<string, number[]>} */
  const alike = new Map();
  rows.forEach((row, i) => {
    const kind = NUMBERED.exec(nameOf(row))?.[1];
    if (kind === undefined) return;
    const key = `${parent[i]} ${kind}`;
    alike.set(key, [...(alike.get(key) ?? []), i]);
  });
  const time = (/** @type {number[]} */ some) => some.reduce((sum, i) => sum + rows[i].step_ms, 0);
  const most = [...alike.values()].filter((some) => some.length >= SEVERAL).sort((a, b) => time(b) - time(a))[0] ?? [];
  return most.map((i) => rows[i]);
}

/**
 * From a module's path, in any view, to what the Layers view says of it.
 * @param {Pick<import("../views.js").Shown, "diagnosis" | "link">} shown
 */
export function toModule({ diagnosis, link }) {
  const known = new Set(diagnosis.layers?.rows.map(({ path }) => path));
  return (/** @type {string} */ path, /** @type {string} */ text) => {
    if (!path || !known.has(path)) return null;
    const anchor = link("layers", { module: path });
    anchor.textContent = text;
    return anchor;
  };
}
