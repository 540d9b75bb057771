// A value of each rank, how it spreads, and which ranks stand out. Pure. Times are ms.

/** @typedef {import("../model.js").Views} Views */
/** @typedef {import("../model.js").Finding} Finding */
/** @typedef {{min: number, p1: number, p25: number, median: number, p75: number, p99: number, max: number}} Spread */
/** @typedef {{name: string, cause: string, ranks: number[], spread: Spread, finding: Finding | null}} Group ranks that are shown as one */

/** A rank stands out from so much of the median on: as in the view of steps. */
const STANDS_OUT = 1.1;

/**
 * @param {number[] | Float64Array} values
 * @returns {Spread}
 */
export function spreadOf(values) {
  const sorted = new Float64Array(values).sort();
  const at = (/** @type {number} */ share) => {
    const place = share * (sorted.length - 1);
    const below = Math.floor(place);
    const next = sorted[Math.min(below + 1, sorted.length - 1)];
    return (sorted[below] ?? 0) + (place - below) * ((next ?? 0) - (sorted[below] ?? 0));
  };
  return { min: at(0), p1: at(0.01), p25: at(0.25), median: at(0.5), p75: at(0.75), p99: at(0.99), max: at(1) };
}

/** What a rank is busy with, as an owner of its time: all but straggler wait. */
export const BUSY = "busy";

/**
 * What an owner has of each rank's step, ms: the mean over steps, or in one step.
 * @param {{diagnosis: import("../model.js").Diagnosis, views: Views}} report
 * @param {string} owner or BUSY
 * @param {number} column of the step, -1 for all
 * @returns {number[]}
 */
export function ofRanks({ diagnosis: { ranks, budget_ms }, views }, owner, column) {
  if (column >= 0) return (owner === BUSY ? views.busy_ms : views.budget_ms[owner]).map((row) => row[column] ?? 0);
  if (owner !== BUSY) return ranks.map((rank) => budget_ms[rank]?.[owner] ?? 0);
  return ranks.map((rank) => {
    const owners = budget_ms[rank] ?? {};
    let sum = 0;
    for (const id in owners) if (id !== "wait") sum += owners[id];
    return sum;
  });
}

/**
 * The owners that have some of a step, with what each has of every rank's, ms: the mean over steps, or in one step.
 * @param {Parameters<typeof ofRanks>[0]} report
 * @param {number} column of the step, -1 for all
 */
export function ownersOf(report, column) {
  return report.views.owners.flatMap((owner) => {
    const values = ofRanks(report, owner, column);
    return values.some((value) => value > 0) ? [{ owner, values }] : [];
  });
}

/**
 * The ranks of each finding that is limited to some, those that stand out beside them, and the others as one.
 * @param {Pick<Views, "ranks" | "roles">} views
 * @param {number[]} busy of each rank
 * @param {Finding[]} faults
 * @returns {Group[]}
 */
export function groupsOf({ ranks, roles }, busy, faults) {
  const row = new Map(ranks.map((rank, i) => [rank, i]));
  const of = (/** @type {number[]} */ some) => spreadOf(some.flatMap((rank) => busy[row.get(rank) ?? -1] ?? []));
  /** @type {Group[]} */
  const groups = [];
  const taken = new Set();
  for (const finding of faults) {
    const some = finding.ranks.filter((rank) => row.has(rank) && !taken.has(rank));
    if (!some.length || finding.ranks.length >= ranks.length) continue;
    some.forEach((rank) => taken.add(rank));
    groups.push({ name: "", cause: finding.rule, ranks: some, spread: of(some), finding });
  }
  // Ranks of reinforcement learning are comparable within their role.
  for (const role of new Set(roles)) {
    const left = ranks.filter((rank, i) => roles[i] === role && !taken.has(rank));
    const { median } = of(left);
    const out = left.filter((rank) => busy[row.get(rank) ?? -1] > STANDS_OUT * median);
    const stands = out.length && out.length < left.length / 2 ? out : [];
    if (stands.length) groups.push({ name: "", cause: "10 % or more above the median, in no finding", ranks: stands, spread: of(stands), finding: null });
    const alike = left.filter((rank) => !stands.includes(rank));
    if (alike.length) groups.push({ name: role ? `comparable ${role}` : "comparable", cause: "", ranks: alike, spread: of(alike), finding: null });
  }
  return groups;
}

/**
 * Where each rank stands in a picture of nodes side by side: its column is its node, its row its place on that. Without
 * nodes eight ranks make a column.
 * @param {number[]} ranks
 * @param {string[]} nodes
 */
export function places(ranks, nodes) {
  const known = nodes.every(Boolean) && new Set(nodes).size > 1;
  /** @type {Map<string, number>} */
  const counts = new Map();
  /** @type {string[]} */
  const columns = [];
  const cells = ranks.map((rank, i) => {
    const name = known ? nodes[i] : String(Math.floor(i / 8));
    if (!counts.has(name)) columns.push(known ? name : `rank ${rank}`);
    const row = counts.get(name) ?? 0;
    counts.set(name, row + 1);
    return { name, row };
  });
  const order = [...counts.keys()];
  const column = new Map(order.map((name, i) => [name, i]));
  return { columns, rows: Math.max(0, ...counts.values()), cells: cells.map(({ name, row }) => ({ column: column.get(name) ?? 0, row })), known };
}
