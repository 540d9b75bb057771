// What a timeline chooses when it is opened for something: the longest stretch of an owner, or of what is sought. Pure.

/** @typedef {import("./rows.js").Row} Row */
/** @typedef {import("./walk.js").Chosen} Chosen */

/**
 * The event that has most of a span; null where none has any.
 * @param {Row[]} rows
 * @param {[number, number][]} events rows and events
 * @param {import("./scale.js").Span} span
 * @returns {Chosen | null}
 */
export function longestOf(rows, events, span) {
  const within = (/** @type {[number, number]} */ [row, index]) => Math.min(rows[row].ends[index], span.to) - Math.max(rows[row].starts[index], span.from);
  const longest = events.reduce((/** @type {[number, number] | null} */ best, one) => (best && within(best) >= within(one) ? best : one), null);
  return longest && within(longest) > 0 ? { row: longest[0], index: longest[1] } : null;
}

/**
 * A rank's stretches of an owner; where the GPU works, its kernels and copies of that.
 * @param {Row[]} rows
 * @param {number} rank
 * @param {string} owner
 * @returns {[number, number][]}
 */
export function ofOwner(rows, rank, owner) {
  const onDevice = owner === "wait" || owner === "transfer" ? "communication" : owner;
  return rows.flatMap((row, i) => {
    if (row.rank !== rank || row.paint === "host") return [];
    const wanted = row.owners.indexOf(row.paint === "budget" ? owner : onDevice);
    return [...row.owner].flatMap((one, index) => (one === wanted ? [/** @type {[number, number]} */ ([i, index])] : []));
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
