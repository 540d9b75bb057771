// What ranks have with each other: the busbw between those of one sub-group, and what they send each other point to point;
// rank by rank, or of many by places that hold several, as nodes. Pure.

/** @typedef {{kind: string, group: string, parallelism: string, ranks: number[], size: number, bus_factor: number, calls: number, mean_bytes: number | null, mean_transfer_us: number, is_slow: boolean}} Group */
/** @typedef {[number, number, number, number | null, number | null]} Sent sender, receiver; transfers, bytes and us in a step */
/** @typedef {{name: string, ranks: number[], where?: string}} Place a row and a column of a matrix, and where it is in the mesh */

/**
 * @typedef {object} Matrix
 * @property {Float64Array} value row by row; NaN where two have nothing with each other
 * @property {Uint8Array} slow 1 where groups that are slower than comparable ones have most of the time
 */

/** More rows than this are no longer told apart. */
export const MOST_ROWS = 512;

/** @typedef {{id: string, name: string, places: Place[]}} Cut what a matrix has a row for */
/** @typedef {Pick<import("../../schema.js").MeshTable, "coordinates"> & {dimensions: {name: string, is_axis: boolean}[]}} Mesh */

/**
 * The rows and columns that a matrix may have: each rank while these can be told apart, in their order or with those of a
 * group of one dimension next to each other; each place of a dimension; each node where there are several; and where nothing
 * else works as many ranks in a row as it takes.
 * @param {number[]} ranks
 * @param {string[]} nodes of each rank, "" if unknown
 * @param {Mesh | null} [mesh]
 * @returns {Cut[]}
 */
export function placesOf(ranks, nodes, mesh = null) {
  /** @type {Map<string, number[]>} */
  const by = new Map();
  ranks.forEach((rank, i) => {
    const node = nodes[i] ?? "";
    const some = by.get(node);
    if (some) some.push(rank);
    else by.set(node, [rank]);
  });
  /** @type {Cut[]} */
  const found = [];
  if (ranks.length <= MOST_ROWS) found.push({ id: "rank", name: "rank", places: ranks.map((rank) => ({ name: `rank ${rank}`, ranks: [rank] })) });
  if (by.size > 1 && by.size <= MOST_ROWS && !by.has("")) found.push({ id: "node", name: "node", places: [...by].map(([name, some]) => ({ name, ranks: some })) });
  found.push(...byDimension(ranks, mesh));
  if (found.length) return found;
  const of = Math.ceil(ranks.length / MOST_ROWS);
  const places = Array.from({ length: Math.ceil(ranks.length / of) }, (_, i) => ranks.slice(i * of, (i + 1) * of)).map((some) => ({ name: `ranks ${some[0]}-${some[some.length - 1]}`, ranks: some }));
  return [{ id: "ranks", name: `${of} ranks`, places }];
}

/**
 * The rows by dimension, of a job of several: ranks with those of one group together, as those of dp that differ in dp alone,
 * and the places of the dimension, each with all its ranks.
 * @param {number[]} ranks
 * @param {Mesh | null} mesh
 * @returns {Cut[]}
 */
function byDimension(ranks, mesh) {
  const axes = (mesh?.dimensions ?? []).filter(({ is_axis }) => is_axis).map(({ name }) => name);
  if (!mesh || axes.length < 2) return [];
  const at = (/** @type {number} */ rank, /** @type {string} */ axis) => mesh.coordinates[String(rank)]?.[axis] ?? -1;
  const where = (/** @type {number} */ rank) => axes.map((axis) => `${axis} ${at(rank, axis)}`).join(", ");
  const ordered = axes.map((axis) => {
    const order = [...axes.filter((other) => other !== axis), axis];
    const sorted = [...ranks].sort((a, b) => order.map((each) => at(a, each) - at(b, each)).find((apart) => apart) ?? a - b);
    return { id: `rank of ${axis}`, name: `rank, groups of ${axis} together`, places: sorted.map((rank) => ({ name: `rank ${rank}`, ranks: [rank], where: where(rank) })) };
  });
  const each = axes.map((axis) => {
    const places = [...new Set(ranks.map((rank) => at(rank, axis)))].filter((place) => place >= 0).sort((a, b) => a - b);
    return { id: axis, name: `place of ${axis}`, places: places.map((place) => ({ name: `${axis} ${place}`, ranks: ranks.filter((rank) => at(rank, axis) === place) })) };
  });
  return [...(ranks.length <= MOST_ROWS ? ordered : []), ...each.filter(({ places }) => places.length > 1 && places.length <= MOST_ROWS)];
}

/**
 * Whether collectives of a group tell the busbw of a part of the job.
 * @param {Group} group
 * @param {number} world ranks of the job
 */
export const tells = ({ size, mean_bytes, mean_transfer_us }, world) => size < world && (mean_bytes ?? 0) > 0 && mean_transfer_us > 0;

/**
 * GB/s between the ranks of each sub-group: what its collectives move over the time that they take without straggler wait.
 * Of places that are together in several, all of these.
 * @param {Group[]} groups
 * @param {Place[]} places
 * @param {number} world ranks of the job
 * @returns {Matrix}
 */
export function busbw(groups, places, world) {
  const at = placeOf(places);
  const n = places.length;
  const [gb, s, late] = [new Float64Array(n * n), new Float64Array(n * n), new Float64Array(n * n)];
  for (const { members, counts, moved, time, lateness } of alike(groups.filter((group) => tells(group, world)), at)) {
    for (let i = 0; i < members.length; i++) {
      const first = members[i] * n;
      for (let j = 0; j < members.length; j++) {
        if (i === j && counts[i] < 2) continue;
        const cell = first + members[j];
        gb[cell] += moved;
        s[cell] += time;
        late[cell] += lateness;
      }
    }
  }
  const slow = new Uint8Array(n * n);
  for (let i = 0; i < gb.length; i++) {
    gb[i] = s[i] ? gb[i] / s[i] : NaN;
    slow[i] = late[i] > s[i] / 2 ? 1 : 0;
  }
  return { value: gb, slow };
}

/**
 * Groups with the same places as one, as all data-parallel groups have of nodes: GB, s, and s of slow ones.
 * @param {Group[]} groups
 * @param {Map<number, number>} at
 */
function alike(groups, at) {
  /** @type {Map<string, {members: Int32Array, counts: Int32Array, moved: number, time: number, lateness: number}>} */
  const found = new Map();
  for (const { ranks, mean_bytes, bus_factor, calls, mean_transfer_us, is_slow } of groups) {
    const [members, counts] = counted(ranks, at);
    const key = `${members} ${counts}`;
    const one = found.get(key) ?? { members, counts, moved: 0, time: 0, lateness: 0 };
    const time = (mean_transfer_us * calls) / 1e6;
    one.moved += ((mean_bytes ?? 0) * bus_factor * calls) / 1e9;
    one.time += time;
    if (is_slow) one.lateness += time;
    found.set(key, one);
  }
  return found.values();
}

/**
 * Point-to-point transfers from rows to columns: GB/s, the bytes over the time in which both have some running, or how many
 * there are in a step.
 * @param {Sent[]} sent
 * @param {Place[]} places
 * @param {"rate" | "count"} what
 * @returns {Matrix}
 */
export function pointToPoint(sent, places, what) {
  const at = placeOf(places);
  const n = places.length;
  const [over, under] = [new Float64Array(n * n), new Float64Array(n * n)];
  for (const [from, to, count, bytes, us] of sent) {
    const [a, b] = [at.get(from), at.get(to)];
    if (a === undefined || b === undefined) continue;
    if (what === "count") {
      over[a * n + b] += count;
      under[a * n + b] = 1;
    } else if (bytes !== null && us !== null && us > 0) {
      over[a * n + b] += bytes / 1e3;
      under[a * n + b] += us;
    }
  }
  return { value: over.map((sum, i) => (under[i] ? sum / under[i] : NaN)), slow: new Uint8Array(n * n) };
}

/** @param {Place[]} places */
const placeOf = (places) => new Map(places.flatMap(({ ranks }, i) => ranks.map((rank) => /** @type {[number, number]} */ ([rank, i]))));

/**
 * The places of some ranks, and how many of them each has.
 * @param {number[]} ranks
 * @param {Map<number, number>} at
 * @returns {[Int32Array, Int32Array]}
 */
function counted(ranks, at) {
  /** @type {Map<number, number>} */
  const members = new Map();
  for (const rank of ranks) {
    const place = at.get(rank);
    if (place !== undefined) members.set(place, (members.get(place) ?? 0) + 1);
  }
  return [Int32Array.from(members.keys()), Int32Array.from(members.values())];
}
