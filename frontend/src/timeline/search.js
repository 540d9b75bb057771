// What a text finds among the events of a timeline: names, kinds of collectives, and modules of the model. Pure.

/** @typedef {import("./rows.js").Row} Row */
/** @typedef {import("./rows.js").Joined} Joined */

/**
 * @typedef {object} Hit events `first` to `last` of a row: one whose name was sought, or all of a module that follow each other
 * @property {number} row
 * @property {number} first
 * @property {number} last
 * @property {string} module its path; "" where a name was found
 */

/**
 * The events whose names, or what is written on their boxes, hold a text, and those of modules that it names; in order
 * of time.
 * @param {Row[]} rows
 * @param {string} text
 * @param {Map<string, Joined>} joined
 * @returns {Hit[]}
 */
export function search(rows, text, joined) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return [];
  const named = once((/** @type {string[]} */ names) => names.map((name) => name.toLowerCase().includes(wanted)));
  const within = once((/** @type {string[]} */ paths) => paths.map((path) => foundModule(path, wanted)));
  const kinds = new Set([...joined].flatMap(([key, { kind }]) => (kind.toLowerCase().includes(wanted) ? [Number(key)] : [])));
  /** @type {Hit[]} */
  const hits = [];
  rows.forEach(({ names, name, collective, modules, module }, row) => {
    const [matches, found] = [named(names), within(modules)];
    let going = /** @type {Hit | null} a module's */ (null);
    for (let i = 0; i < name.length; i++) {
      const path = found[module[i]] ?? "";
      if (matches[name[i]] || kinds.has(collective[i])) {
        hits.push({ row, first: i, last: i, module: "" });
        going = null;
      } else if (path && going?.module === path) {
        going.last = i;
      } else {
        going = path ? { row, first: i, last: i, module: path } : null;
        if (going) hits.push(going);
      }
    }
  });
  return hits.sort((a, b) => rows[a.row].starts[a.first] - rows[b.row].starts[b.first]);
}

/**
 * The module that a text names, of those around and with a path's own: of "layers.0.mlp" "layers.0" for "s.0"; "" for none.
 * A number is sought as a whole: "layer 1" is not in "layer 12".
 * @param {string} path
 * @param {string} wanted in lower case
 */
export function foundModule(path, wanted) {
  const lower = path.toLowerCase();
  const numbered = /\d$/.test(wanted);
  for (let at = lower.indexOf(wanted); at >= 0; at = lower.indexOf(wanted, at + 1)) {
    const after = at + wanted.length;
    if (numbered && /\d/.test(lower[after] ?? "")) continue;
    const end = path.indexOf(".", after);
    return end < 0 ? path : path.slice(0, end);
  }
  return "";
}

/**
 * A function whose answer for each list is kept: rows share lists.
 * @template T
 * @param {(list: string[]) => T} of
 */
function once(of) {
  /** @type {Map<string[], T>} */
  const known = new Map();
  return (/** @type {string[]} */ list) => {
    const before = known.get(list);
    if (before !== undefined) return before;
    const made = of(list);
    known.set(list, made);
    return made;
  };
}
