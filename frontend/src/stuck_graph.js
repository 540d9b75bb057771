// Who waits for whom as a picture: columns by the number of steps to a rank at the root, which stand on the left.
// Coordinates are CSS pixels of the picture.

import { svg } from "./dom.js";
import { ranges } from "./format.js";

/** @typedef {import("./stuck_model.js").StuckRun} StuckRun */
/** @typedef {import("./stuck_model.js").RankWait} RankWait */

/**
 * Ranks that wait for the same ranks in the same way, or a rank at the root.
 * @typedef {object} GraphNode
 * @property {number[]} ranks
 * @property {number} column steps to the root
 * @property {number[]} targets ranks
 * @property {string} what it waits in; only the kind where that differs
 * @property {string} call the same without its group
 * @property {boolean} root
 */

const WIDTH = 196;
const HEIGHT = 42;
const GAP_X = 48;
const GAP_Y = 10;
/** Letters of a line in a box. */
const LETTERS = 28;
/** Boxes of a column; the last of more is the number of those that are left out. */
const MOST = 24;

/**
 * @param {StuckRun} run
 * @returns {GraphNode[]}
 */
function nodesOf({ findings, waits }) {
  const roots = new Set(findings.flatMap(({ ranks }) => ranks));
  const column = columns(roots, waits);
  /** @type {Map<string, GraphNode>} */
  const nodes = new Map();
  for (const { id, ranks } of findings) nodes.set(id, { ranks, column: 0, targets: [], what: "", call: "", root: true });
  for (const [rank, { targets, what, call, kind }] of byRank(waits)) {
    if (roots.has(rank)) continue;
    const at = column.get(rank) ?? 1;
    const key = `${at} ${targets} ${kind}`;
    const node = nodes.get(key);
    if (!node) nodes.set(key, { ranks: [rank], column: at, targets, what, call, root: false });
    else {
      node.ranks.push(rank);
      if (node.what !== what) node.what = node.call = kind;
    }
  }
  return [...nodes.values()];
}

/**
 * What each rank waits in, and all ranks that it waits for there.
 * @param {RankWait[]} waits
 */
function byRank(waits) {
  /** @type {Map<number, {targets: number[], what: string, call: string, kind: string}>} */
  const found = new Map();
  for (const { rank, targets, what, call, kind } of waits) {
    const before = found.get(rank)?.targets ?? [];
    found.set(rank, { targets: [...before, ...targets].sort((a, b) => a - b), what, call, kind });
  }
  return found;
}

/**
 * Steps from each rank to the nearest root, along what it waits for.
 * @param {Set<number>} roots
 * @param {RankWait[]} waits
 */
function columns(roots, waits) {
  /** @type {Map<number, number[]>} */
  const waiting = new Map();
  for (const { rank, targets } of waits) for (const target of targets) waiting.set(target, [...(waiting.get(target) ?? []), rank]);
  const column = new Map([...roots].map((rank) => [rank, 0]));
  const ahead = [...roots];
  for (const rank of ahead) {
    for (const other of waiting.get(rank) ?? []) {
      if (column.has(other)) continue;
      column.set(other, (column.get(rank) ?? 0) + 1);
      ahead.push(other);
    }
  }
  return column;
}

/** @param {StuckRun} run */
export function waitingGraph(run) {
  const nodes = nodesOf(run);
  const place = placed(nodes);
  const boxes = [...place.entries()];
  const right = Math.max(...boxes.map(([, { x }]) => x)) + WIDTH;
  const below = Math.max(...boxes.map(([, { y }]) => y)) + HEIGHT;
  const picture = svg("svg", {
    class: "graph",
    width: right + 2,
    height: below + 2,
    viewBox: `-1 -1 ${right + 2} ${below + 2}`,
    role: "img",
    "aria-label": `Waiting graph: ${run.findings.map(({ title }) => title).join(" ")}`,
  });
  for (const [node, from] of boxes) {
    for (const target of boxes.filter(([other]) => node.targets.some((rank) => other.ranks.includes(rank)))) picture.append(arrow(from, target[1]));
  }
  for (const [node, at] of boxes) picture.append(box(node, at));
  const hidden = nodes.length - boxes.length;
  if (hidden) picture.append(text(`${hidden} more are in the table`, 0, below + 16, "soft"));
  if (hidden) picture.setAttribute("height", String(below + 24)), picture.setAttribute("viewBox", `-1 -1 ${right + 2} ${below + 24}`);
  return picture;
}

/**
 * Where each box stands: beside those that it leads to, as far as there is room.
 * @param {GraphNode[]} nodes
 * @returns {Map<GraphNode, {x: number, y: number}>}
 */
function placed(nodes) {
  /** @type {Map<GraphNode, {x: number, y: number}>} */
  const place = new Map();
  const last = Math.max(...nodes.map(({ column }) => column));
  for (let column = 0; column <= last; column++) {
    const wanted = nodes
      .filter((node) => node.column === column)
      .map((node) => ({ node, y: mean([...place].filter(([other]) => node.targets.some((rank) => other.ranks.includes(rank))).map(([, { y }]) => y)) }));
    wanted.sort((a, b) => a.y - b.y || a.node.ranks[0] - b.node.ranks[0]);
    wanted.slice(0, MOST).forEach(({ node }, i) => place.set(node, { x: column * (WIDTH + GAP_X), y: i * (HEIGHT + GAP_Y) }));
  }
  return place;
}

/** @param {number[]} values */
const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : 0);

/**
 * @param {{x: number, y: number}} from
 * @param {{x: number, y: number}} to
 */
function arrow(from, to) {
  const [x, y] = [from.x, from.y + HEIGHT / 2];
  const [end, at] = [to.x + WIDTH, to.y + HEIGHT / 2];
  const bend = Math.max(24, Math.abs(x - end) / 2);
  const group = svg("g", { class: "arrow" });
  group.append(
    svg("path", { d: `M${x},${y}C${x - bend},${y} ${end + bend},${at} ${end + 6},${at}` }),
    svg("path", { class: "head", d: `M${end},${at}l8,-4v8z` }),
  );
  return group;
}

/**
 * @param {GraphNode} node
 * @param {{x: number, y: number}} at
 */
function box({ ranks, what, call, root }, { x, y }) {
  const name = `${ranks.length === 1 ? "rank" : "ranks"} ${ranges(ranks.toSorted((a, b) => a - b))}`;
  const group = svg("g", { class: root ? "box root" : "box" });
  group.append(
    svg("title", {}, root ? `${name}: at the root` : `${name} in ${what}`),
    svg("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 7 }),
    text(short(name), x + 10, y + 17, "name"),
    text(short(root ? "at the root" : call), x + 10, y + 33, "soft"),
  );
  return group;
}

/** @param {string} words */
const short = (words) => (words.length > LETTERS ? `${words.slice(0, LETTERS - 1)}…` : words);

/**
 * @param {string} words
 * @param {number} x
 * @param {number} y
 * @param {string} kind
 */
function text(words, x, y, kind) {
  return svg("text", { x, y, class: kind }, words);
}
