// What ranks have with each other: the busbw between those of one sub-group. Pure.

/** @typedef {{kind: string, group: string, parallelism: string, ranks: number[], size: number, bus_factor: number, calls: number, mean_bytes: number | null, mean_transfer_us: number, is_slow: boolean}} Group */
/** @typedef {{a: number, b: number, value: number, of: string, slow: boolean}} Pair places of two ranks, a value and what it is of */

/**
 * GB/s between the ranks of each sub-group: what its collectives move over the time that they take without straggler wait.
 * Of ranks that are together in several, all of these.
 * @param {Group[]} groups
 * @param {number[]} ranks that have a trace
 * @param {number} world ranks of the job
 * @param {(group: Group) => string} nameOf
 * @returns {Pair[]}
 */
export function busbwPairs(groups, ranks, world, nameOf) {
  const place = new Map(ranks.map((rank, i) => [rank, i]));
  /** @type {Map<string, {a: number, b: number, gb: number, s: number, of: Set<string>, slow: boolean}>} */
  const found = new Map();
  for (const group of groups) {
    if (group.size >= world || !group.mean_bytes || !(group.mean_transfer_us > 0)) continue;
    const members = group.ranks.flatMap((rank) => place.get(rank) ?? []);
    const [gb, s] = [(group.mean_bytes * group.bus_factor * group.calls) / 1e9, (group.mean_transfer_us * group.calls) / 1e6];
    for (const a of members) {
      for (const b of members) {
        if (a === b) continue;
        const key = `${a}:${b}`;
        const one = found.get(key) ?? { a, b, gb: 0, s: 0, of: new Set(), slow: false };
        one.gb += gb;
        one.s += s;
        one.of.add(nameOf(group));
        one.slow ||= group.is_slow;
        found.set(key, one);
      }
    }
  }
  return [...found.values()].map(({ a, b, gb, s, of, slow }) => ({ a, b, value: gb / s, of: [...of].join(", "), slow }));
}
