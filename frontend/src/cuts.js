// A step cut into parts, for each rank or node: the rows of the budget. Pure.

import { hasGpu, whenOf } from "./model.js";
import { OWNERS, PHASES } from "./step_parts.js";

/** @typedef {import("./model.js").Diagnosis} Diagnosis */
/** @typedef {{id: string, name: string, when: string, colour: string}} Part */
/** @typedef {{id: "owners" | "phases", title: string, parts: Part[]}} Kind */

/**
 * @typedef {object} Row
 * @property {string} name
 * @property {string} node "" if unknown
 * @property {number[]} ranks
 * @property {number[]} values ms, one for each part of the kind
 * @property {number} total ms
 * @property {number} busy ms, the step minus straggler wait
 */

/** @type {[string, string][]} */
export const ORDERS = [
  ["rank", "rank"],
  ["node", "node"],
  ["busy", "busy time, longest first"],
];

/** @type {(gpu: boolean) => Kind} */
const byOwner = (gpu) => ({
  id: "owners",
  title: "owners",
  parts: [...OWNERS].map(([id, owner]) => ({ id, name: owner.name, when: whenOf(owner, gpu), colour: id })),
});

/** @type {(gpu: boolean) => Kind} */
const byPhase = (gpu) => ({
  id: "phases",
  title: "phases",
  parts: [...PHASES].map(([id, phase]) => ({ id, name: phase.name, when: whenOf(phase, gpu), colour: phase.colour })),
});

const OF_GPUS = [byOwner(true), byPhase(true)];
const OF_CPUS = [byOwner(false), byPhase(false)];

/**
 * The ways to cut that the job allows: not all traces tell phases.
 * @param {Diagnosis} diagnosis
 */
export function kindsOf(diagnosis) {
  const kinds = hasGpu(diagnosis) ? OF_GPUS : OF_CPUS;
  return Object.keys(diagnosis.phases_ms ?? {}).length ? kinds : kinds.slice(0, 1);
}

/** @type {WeakMap<Diagnosis, Map<Kind, Row[]>>} rows of diagnoses, which do not change */
const known = new WeakMap();

/**
 * A row for each rank.
 * @param {{diagnosis: Diagnosis, views: {nodes: string[]} | null}} report
 * @param {Kind} kind
 * @returns {Row[]}
 */
export function cut({ diagnosis, views }, kind) {
  const cuts = known.get(diagnosis) ?? new Map();
  known.set(diagnosis, cuts);
  if (!cuts.has(kind)) cuts.set(kind, rowsOf(diagnosis, views?.nodes ?? [], kind));
  return cuts.get(kind);
}

/**
 * @param {Diagnosis} diagnosis
 * @param {string[]} nodes
 * @param {Kind} kind
 * @returns {Row[]}
 */
function rowsOf(diagnosis, nodes, kind) {
  const source = kind.id === "phases" ? diagnosis.phases_ms : diagnosis.budget_ms;
  return diagnosis.ranks.map((rank, i) => {
    const values = kind.parts.map(({ id }) => source[rank]?.[id] ?? 0);
    const owners = diagnosis.budget_ms[rank] ?? {};
    const busy = Object.entries(owners).reduce((sum, [owner, value]) => (owner === "wait" ? sum : sum + value), 0);
    return { name: `rank ${rank}`, node: nodes[i] ?? "", ranks: [rank], values, total: sum(values), busy };
  });
}

/**
 * A row for each node: the mean of its ranks.
 * @param {Row[]} rows
 * @returns {Row[]}
 */
export function perNode(rows) {
  /** @type {Map<string, Row[]>} */
  const nodes = new Map();
  for (const row of rows) {
    const members = nodes.get(row.node);
    if (members) members.push(row);
    else nodes.set(row.node, [row]);
  }
  return [...nodes].map(([node, members]) => {
    const values = members[0].values.map((_, i) => sum(members.map((row) => row.values[i])) / members.length);
    const busy = sum(members.map((row) => row.busy)) / members.length;
    return { name: node, node, ranks: members.flatMap(({ ranks }) => ranks), values, total: sum(values), busy };
  });
}

/**
 * @param {Row[]} rows
 * @param {string} order one of ORDERS
 */
export function sorted(rows, order) {
  const byRank = (/** @type {Row} */ a, /** @type {Row} */ b) => a.ranks[0] - b.ranks[0];
  if (order === "busy") return [...rows].sort((a, b) => b.busy - a.busy || byRank(a, b));
  if (order === "node") return [...rows].sort((a, b) => a.node.localeCompare(b.node, "en", { numeric: true }) || byRank(a, b));
  return [...rows].sort(byRank);
}

/** @param {number[]} values */
const sum = (values) => values.reduce((total, value) => total + value, 0);
