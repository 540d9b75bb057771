// What a timeline chooses when it is opened for something: the longest stretch of an owner, or of what is sought. Pure.

/** @typedef {import("./rows.js").Row} Row */
/** @typedef {import("./search.js").Hit} Hit */
/** @typedef {import("./walk.js").Chosen} Chosen */

/**
 * Where the hit begins that has most of a span; null where none has any.
 * @param {Row[]} rows
 * @param {Pick<Hit, "row" | "first" | "last">[]} hits
 * @param {import("./scale.js").Span} span
 * @returns {Chosen | null}
 */
export function longestOf(rows, hits, span) {
  const within = (/** @type {Pick<Hit, "row" | "first" | "last">} */ { row, first, last }) => Math.min(rows[row].ends[last], span.to) - Math.max(rows[row].starts[first], span.from);
  const longest = hits.reduce((/** @type {Pick<Hit, "row" | "first" | "last"> | null} */ best, one) => (best && within(best) >= within(one) ? best : one), null);
  return longest && within(longest) > 0 ? { row: longest.row, index: longest.first } : null;
}

/**
 * A rank's stretches of an owner; where the GPU works, its kernels and copies of that.
 * @param {Row[]} rows
 * @param {number} rank
 * @param {string} owner
 * @returns {Pick<Hit, "row" | "first" | "last">[]}
 */
export function ofOwner(rows, rank, owner) {
  const onDevice = owner === "wait" || owner === "transfer" ? "communication" : owner;
  return rows.flatMap((row, i) => {
    if (row.rank !== rank || row.paint === "host") return [];
    const wanted = row.owners.indexOf(row.paint === "budget" ? owner : onDevice);
    return [...row.owner].flatMap((one, index) => (one === wanted ? [{ row: i, first: index, last: index }] : []));
  });
}

/**
 * Where an event shows that is known by its name and times; null where it does not.
 * @param {Row[]} rows
 * @param {number} rank
 * @param {{name: string, start: number}} event
 * @returns {Chosen | null}
 */
export function placeOf(rows, rank, { name, start }) {
  for (const [row, { rank: other, starts, names, name: named }] of rows.entries()) {
    if (other !== rank) continue;
    const index = starts.indexOf(start);
    if (index >= 0 && names[named[index]] === name) return { row, index };
  }
  return null;
}
