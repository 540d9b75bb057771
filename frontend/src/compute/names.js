// Names of kernels that begin alike, cut to what tells them apart. Pure.

/** Names longer than this are cut at their end where a table is narrow. */
const LETTERS = 60;
/** What stays of the beginning: a kernel and the name of its first argument, or so many letters. */
const HEAD = /^[^<]*<(\d+, )*[\w:]*/;
const LEAST = 36;
/** So many letters stand from where a name differs on, and at most before that, of the same word. */
const AFTER = 24;
const BEFORE = 24;
const WORD = /[\w:#<]/;

/**
 * What to write for each name: of names that begin alike the beginning, and each place from which one differs from
 * another: "elementwise_kernel<128, 4, gpu_kernel_impl_nocast…MulFunctor<float> >…".
 * @param {string[]} names
 * @returns {Map<string, string>}
 */
export function apart(names) {
  /** @type {Map<string, string[]>} */
  const alike = new Map();
  for (const name of new Set(names)) {
    const start = name.slice(0, LETTERS);
    const group = alike.get(start);
    if (group) group.push(name);
    else alike.set(start, [name]);
  }
  /** @type {Map<string, string>} */
  const written = new Map();
  for (const group of alike.values()) {
    if (group.length === 1) written.set(group[0], group[0]);
    else branches(group.sort()).forEach((places, i) => written.set(group[i], cut(group[i], places)));
  }
  return written;
}

/**
 * Where each name differs from others, ascending. Of sorted names two have in common the least that neighbours between
 * them have.
 * @param {string[]} sorted
 */
function branches(sorted) {
  const alike = sorted.map((name, i) => (i ? common(sorted[i - 1], name) : 0));
  return sorted.map((_, i) => {
    /** @type {Set<number>} */
    const places = new Set();
    for (let j = i, least = Infinity; j > 0; j--) places.add((least = Math.min(least, alike[j])));
    for (let j = i + 1, least = Infinity; j < sorted.length; j++) places.add((least = Math.min(least, alike[j])));
    return [...places].sort((a, b) => a - b);
  });
}

/** @param {string} one @param {string} other */
function common(one, other) {
  let at = 0;
  while (at < one.length && one[at] === other[at]) at++;
  return at;
}

/**
 * @param {string} name
 * @param {number[]} places
 */
function cut(name, places) {
  const head = HEAD.exec(name)?.[0].length ?? LEAST;
  let shownTo = head < LETTERS ? head : LEAST;
  let text = name.slice(0, shownTo);
  for (const place of places) {
    const end = Math.min(place + AFTER, name.length);
    let from = Math.min(place, name.length - 1);
    while (from > shownTo && place - from < BEFORE && WORD.test(name[from - 1])) from--;
    text += from > shownTo ? `…${name.slice(from, end)}` : name.slice(shownTo, end);
    shownTo = Math.max(shownTo, end);
  }
  return shownTo < name.length ? `${text}…` : text;
}
