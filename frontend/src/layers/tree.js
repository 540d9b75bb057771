// The trees of the Layers view; pure. All are made of the same rows, a kernel of a module each, so that every node is the
// sum of what is below it, on every rank:
//
//   top-down    step > layers > layers.0 > mlp > backward > aten::mm > sgemm_128x64
//   bottom-up   step > aten::mm: sgemm_128x64 > layers.0.mlp, layers.1.mlp, ...
//
// Nodes stand in order: each is followed by those within it.

import { PARTS } from "./model.js";
import { shortName } from "../timeline/rows.js";

/**
 * @typedef {object} Told columns of the kernels of modules; indices into `paths`, `texts` and `sources`
 * @property {number[]} ranks
 * @property {number} all_ranks how many the job has; of many, not all are told
 * @property {number} kernels how many rows there are
 * @property {string[]} parts
 * @property {string[]} paths
 * @property {number[]} parent of each path, -1 for the whole step
 * @property {number[]} module
 * @property {number[]} part
 * @property {number[]} operator
 * @property {number[]} kernel
 * @property {number[]} source -1 for none
 * @property {string[]} texts
 * @property {{file: string, line: number, function: string}[]} sources
 * @property {number[]} calls
 * @property {number[][]} ms a list of all rows for each rank
 * @property {number[] | null} critical_ms what of the critical path in a step lies in each row; null without a path
 * @property {number | null} critical_outside_ms what of it lies in none
 */

/** @typedef {"step" | "module" | "part" | "operator" | "kernel"} Kind */

/**
 * @typedef {object} Node
 * @property {string} key names of the nodes around it and its own, by which an address finds it again
 * @property {string} name
 * @property {string} said whole, as "backward of layers.0.mlp"
 * @property {string} path of its module, "" for none
 * @property {Kind} kind
 * @property {string} colour the owner whose colour it has; "" for a module
 * @property {number} level
 * @property {number} parent -1 for the step
 * @property {number} end the node behind all that are within it
 * @property {number[]} rows those that it is the sum of
 * @property {Float64Array} ms of each rank; summed when it is first asked for, since most nodes are never drawn
 */

/** What separates the names in a key; traces have no such letter in names. */
const APART = "\u001f";
/** So many modules of one kind side by side are layers, which can be merged. */
const SEVERAL = 3;
const REST = "other kernels";

/** @typedef {{name: string, kind: Kind, said: string, path: string, colour: string, order: number}} Level */
/** @typedef {{level: Level, rows: number[], within: Map<string, Grown>}} Grown a level with its rows and those within it */

/**
 * The rows as a tree of the levels of each.
 * @param {Told} told
 * @param {(row: number) => Level[]} levelsOf from the outermost one on, without the step
 * @param {(row: number) => boolean} [counts] whether a row is in the tree
 * @returns {Node[]}
 */
function grown(told, levelsOf, counts = () => true) {
  /** @type {Grown} */
  const root = { level: { name: "step", kind: "step", said: "Whole step", path: "", colour: "", order: 0 }, rows: [], within: new Map() };
  for (let row = 0; row < told.kernels; row++) {
    if (!counts(row)) continue;
    let at = root;
    at.rows.push(row);
    for (const level of levelsOf(row)) {
      const key = `${level.kind} ${level.name}`;
      /** @type {Grown} */
      const inner = at.within.get(key) ?? { level, rows: [], within: new Map() };
      at.within.set(key, inner);
      inner.rows.push(row);
      at = inner;
    }
  }
  const most = told.module.map((_, row) => told.ms.reduce((longest, of) => Math.max(longest, of[row]), 0));
  /** @type {Node[]} */
  const nodes = [];
  add(root, "", -1, 0);
  return nodes;

  /**
   * @param {Grown} one
   * @param {string} around the key of its parent
   * @param {number} parent
   * @param {number} depth
   */
  function add({ level, rows, within }, around, parent, depth) {
    const index = nodes.length;
    const key = parent < 0 ? "" : `${around}${APART}${level.name}`;
    /** @type {Float64Array | null} */
    let ms = null;
    const node = {
      key,
      name: level.name,
      said: level.said,
      path: level.path,
      kind: level.kind,
      colour: level.colour,
      level: depth,
      parent,
      end: 0,
      rows,
      get ms() {
        return (ms ??= summed(told, rows));
      },
    };
    nodes.push(node);
    // Modules and parts in their order, then what has most time.
    const time = new Map([...within.values()].map((one) => [one, one.rows.reduce((total, row) => total + most[row], 0)]));
    for (const one of [...within.values()].sort((x, y) => x.level.order - y.level.order || (time.get(y) ?? 0) - (time.get(x) ?? 0))) add(one, key, index, depth + 1);
    node.end = nodes.length;
  }
}

/**
 * The sum of some rows on each rank.
 * @param {Told} told
 * @param {number[]} rows
 */
export function summed({ ms }, rows) {
  const sums = new Float64Array(ms.length);
  ms.forEach((of, rank) => {
    let sum = 0;
    for (const row of rows) sum += of[row];
    sums[rank] = sum;
  });
  return sums;
}

/**
 * What of the critical path in a step lies in a node, ms; null without a path. The whole step has all of it, what lies in no
 * kernel and in the idle time that the bottom-up tree leaves out included.
 * @param {Told} told
 * @param {Node} node
 */
export function criticalOf({ critical_ms, critical_outside_ms }, { kind, rows }) {
  if (!critical_ms) return null;
  if (kind === "step") return critical_ms.reduce((sum, ms) => sum + ms, critical_outside_ms ?? 0);
  return rows.reduce((sum, row) => sum + critical_ms[row], 0);
}

/**
 * @param {Told} told
 * @param {boolean} merged whether layers are one
 * @returns {Node[]}
 */
export function topDown(told, merged) {
  const modules = moduleLevels(told, merged);
  return grown(told, (row) => {
    const around = modules[told.module[row]];
    const path = told.paths[told.module[row]];
    const part = PARTS[told.part[row]];
    const of = around.length ? ` of ${around[around.length - 1].said}` : " outside of all modules";
    /** @type {Level[]} */
    const levels = [...around, { name: part.name, kind: "part", said: `${part.name}${of}`, path, colour: part.colour, order: 1e6 + told.part[row] }];
    const [operator, kernel] = [told.texts[told.operator[row]], told.texts[told.kernel[row]]];
    const colour = part.colour;
    if (operator) levels.push({ name: operator, kind: "operator", said: `${operator} in ${part.name}${of}`, path, colour, order: 2e6 });
    if (kernel) levels.push({ name: shortName(kernel), kind: "kernel", said: `${shortName(kernel)} in ${part.name}${of}`, path, colour, order: 2e6 });
    if (!operator && !kernel) levels.push({ name: REST, kind: "kernel", said: `${REST} in ${part.name}${of}`, path, colour, order: 3e6 });
    return levels;
  });
}

/**
 * What runs, by operator and kernel, with the modules below; without idle time.
 * @param {Told} told
 * @param {boolean} merged
 * @returns {Node[]}
 */
export function bottomUp(told, merged) {
  const modules = moduleLevels(told, merged);
  const idle = told.parts.indexOf("idle");
  return grown(
    told,
    (row) => {
      const [operator, kernel] = [told.texts[told.operator[row]], shortName(told.texts[told.kernel[row]])];
      const name = [operator, kernel].filter(Boolean).join(": ") || REST;
      const around = modules[told.module[row]];
      const module = around.length ? around[around.length - 1].said : "outside of all modules";
      const part = PARTS[told.part[row]];
      return [
        { name, kind: operator || !kernel ? "operator" : "kernel", said: name, path: "", colour: part.colour, order: 0 },
        { name: module, kind: "module", said: `${name} in ${module}`, path: told.paths[told.module[row]], colour: "", order: 0 },
      ];
    },
    (row) => told.part[row] !== idle,
  );
}

/**
 * The modules around each module and itself, from the outermost one on.
 * @param {Told} told
 * @param {boolean} merged
 * @returns {Level[][]}
 */
function moduleLevels({ paths, parent }, merged) {
  const names = paths.map((path) => path.slice(path.lastIndexOf(".") + 1));
  const kinds = names.map((name) => name.replace(/\d+$/, ""));
  /** How many modules of a kind each module has within it, and which of them each is. */
  const counts = new Map();
  const places = paths.map((_, module) => {
    const key = `${parent[module]} ${kinds[module]}`;
    const place = kinds[module] === names[module] ? 0 : (counts.get(key) ?? 0);
    counts.set(key, place + 1);
    return place;
  });
  /** @type {Level[][]} */
  const levels = [];
  const within = paths.map(() => false);
  paths.forEach((path, module) => {
    const around = parent[module];
    if (around < 0) return levels.push([]);
    const alike = counts.get(`${around} ${kinds[module]}`) ?? 0;
    const numbered = kinds[module] !== names[module];
    const isLayer = merged && numbered && alike >= SEVERAL;
    within[module] = isLayer || within[around];
    let name = names[module];
    if (isLayer) name = `${kinds[module]}*`;
    else if (within[module] && numbered) name = alike > 1 ? `${kinds[module]}* (${places[module] + 1})` : `${kinds[module]}*`;
    const outer = levels[around];
    const said = within[module] ? [...(outer.length ? [outer[outer.length - 1].said] : []), name].join(".") : path;
    levels.push([...outer, { name, kind: "module", said, path: within[module] ? "" : path, colour: "", order: module }]);
  });
  return levels;
}

/**
 * How many layers are merged into one at most; 0 where a model has none.
 * @param {Told} told
 */
export function layersOf({ paths, parent }) {
  const counts = new Map();
  paths.forEach((path, module) => {
    const kind = /^(.*?)\d+$/.exec(path.slice(path.lastIndexOf(".") + 1))?.[1];
    if (kind !== undefined) counts.set(`${parent[module]} ${kind}`, (counts.get(`${parent[module]} ${kind}`) ?? 0) + 1);
  });
  const most = Math.max(0, ...counts.values());
  return most >= SEVERAL ? most : 0;
}

/** @param {ArrayLike<number>} values */
export function median(values) {
  const sorted = Float64Array.from(values).sort();
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : sorted.length ? (sorted[middle - 1] + sorted[middle]) / 2 : 0;
}

/**
 * What is shown of each node: a rank's time (by its place in `ranks`; -1 for the median rank), or how much more it is than
 * another one's.
 * @typedef {{rank: number, against: number | null}} Shown `against`: null for no difference, -1 for the median of the others
 */

/**
 * @param {Float64Array} ms
 * @param {Shown} shown
 */
export function valueOf(ms, { rank, against }) {
  const own = rank < 0 ? median(ms) : ms[rank];
  if (against === null) return own;
  return own - (against < 0 ? median(ms.filter((_, i) => i !== rank)) : ms[against]);
}

/**
 * The sizes of differences, which are at least those of all within them.
 * @param {Node[]} nodes
 * @param {(node: number) => number} value
 */
export function widths(nodes, value) {
  const wide = nodes.map((_, i) => Math.abs(value(i)));
  const within = nodes.map(() => 0);
  for (let i = nodes.length - 1; i > 0; i--) {
    wide[i] = Math.max(wide[i], within[i]);
    within[nodes[i].parent] += wide[i];
  }
  if (nodes.length) wide[0] = Math.max(wide[0], within[0]);
  return wide;
}

/**
 * A node and those within it as boxes below each other; siblings stand side by side from their parent's left edge. Where
 * medians of children add up to more than their parent's, they are narrower. Nothing within a box too narrow is asked for.
 * @param {Node[]} nodes
 * @param {number} root
 * @param {(node: number) => number} width
 * @param {number} least share of the whole width
 * @returns {import("./model.js").Box[]}
 */
export function boxesWithin(nodes, root, width, least) {
  /** @type {import("./model.js").Box[]} */
  const placed = [{ index: root, depth: 0, from: 0, share: 1 }];
  for (let at = 0; at < placed.length; at++) {
    const around = placed[at];
    const within = [];
    let sum = 0;
    for (let i = around.index + 1; i < nodes[around.index].end; i = nodes[i].end) {
      within.push(i);
      sum += width(i);
    }
    const whole = Math.max(width(around.index), sum);
    let from = around.from;
    for (const index of within) {
      const share = whole > 0 ? (around.share * width(index)) / whole : 0;
      if (share >= least) placed.push({ index, depth: around.depth + 1, from, share });
      from += share;
    }
  }
  return placed.sort((a, b) => a.index - b.index);
}

/**
 * The nodes that have all words in what is said of them, and of those within each other the outermost one.
 * @param {Node[]} nodes
 * @param {string} words
 */
export function hits(nodes, words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (!wanted.length) return [];
  /** @type {boolean[]} */
  const inside = [];
  /** @type {number[]} */
  const outermost = [];
  nodes.forEach(({ said, parent }, i) => {
    const text = said.toLowerCase();
    const is = i > 0 && wanted.every((word) => text.includes(word));
    if (is && !inside[parent]) outermost.push(i);
    inside[i] = is || Boolean(inside[parent]);
  });
  return outermost;
}
