// Many values as shades of one colour. The values are pixels of a small picture that the browser stretches: a thousand
// ranks by a hundred steps cost no more than a few.

/** @typedef {import("./model.js").Grid} Grid */
/** @typedef {(value: number) => number} Shade 0 pale to 1 full */

/**
 * How far a value stands above the median: 0 at or below it, 1 at half as much again, or at the longest if that is
 * more. So an even job stays pale, however long its steps are.
 * @param {number[] | Float64Array} values
 */
export function shading(values) {
  const sorted = new Float64Array(values).sort();
  const median = sorted[Math.floor((sorted.length - 1) / 2)] ?? 0;
  const longest = sorted[sorted.length - 1] ?? 0;
  const full = Math.max(1.5 * median, longest);
  const of = (/** @type {number} */ value) => (full > median ? Math.max(0, value - median) / (full - median) : 0);
  return { median, full, longest, of };
}

/**
 * What is there of a grid.
 * @param {Grid} grid
 */
export function present(grid) {
  const values = new Float64Array(grid.reduce((sum, row) => sum + row.length, 0));
  let count = 0;
  for (const row of grid) for (const value of row) if (value !== null) values[count++] = value;
  return values.subarray(0, count);
}

/**
 * The largest value, above 0 so that others can be shares of it.
 * @param {Grid} grid
 */
export function longest(grid) {
  let most = Number.MIN_VALUE;
  for (const row of grid) for (const value of row) if (value !== null && value > most) most = value;
  return most;
}

/** @type {WeakMap<Grid, Map<number, {of: number, rows: Grid}>>} of grids, which do not change, by how many rows of one */
const joined = new WeakMap();

/**
 * A grid in so many rows at most: each is the largest of as many successive ones.
 * @param {Grid} grid
 * @param {number} most
 */
export function joinedRows(grid, most) {
  const of = Math.max(1, Math.ceil(grid.length / most));
  if (of === 1) return { of, rows: grid };
  const known = joined.get(grid) ?? new Map();
  joined.set(grid, known);
  if (!known.has(of)) known.set(of, { of, rows: largestOf(grid, of) });
  return known.get(of);
}

/**
 * @param {Grid} grid
 * @param {number} of
 * @returns {Grid}
 */
function largestOf(grid, of) {
  return Array.from({ length: Math.ceil(grid.length / of) }, (_, i) => {
    const row = grid[i * of].slice();
    for (const other of grid.slice(i * of + 1, (i + 1) * of))
      // Without a pair for each value: they were tens of MB, and what the collector took was half of the click.
      for (let j = 0; j < row.length; j++) {
        const value = other[j];
        const most = row[j];
        if (value !== null && (most === null || value > most)) row[j] = value;
      }
    return row;
  });
}

/**
 * @param {(ArrayLike<number | null>)[]} grid null or NaN where there is nothing
 * @param {Shade} shade
 * @param {[number, number, number]} pale red, green and blue
 * @param {[number, number, number]} full
 */
export function pixels(grid, shade, pale, full) {
  const columns = grid[0]?.length ?? 0;
  const image = new ImageData(Math.max(1, columns), Math.max(1, grid.length));
  const colours = new Uint32Array(256);
  const bytes = new Uint8ClampedArray(colours.buffer);
  for (let level = 0; level < 256; level++) {
    const share = 0.1 + (0.9 * level) / 255;
    for (let channel = 0; channel < 3; channel++)
      bytes[4 * level + channel] = Math.round(pale[channel] + share * (full[channel] - pale[channel]));
    bytes[4 * level + 3] = 255;
  }
  const out = new Uint32Array(image.data.buffer);
  grid.forEach((row, i) => {
    for (let j = 0; j < columns; j++) {
      const value = row[j];
      if (value !== null && value !== undefined && value === value) out[i * columns + j] = colours[Math.round(255 * shade(value))];
    }
  });
  return image;
}

/**
 * @param {string} colour #rgb or #rrggbb
 * @returns {[number, number, number]}
 */
export function rgb(colour) {
  const digits = colour.length === 4 ? [...colour.slice(1)].map((digit) => digit + digit).join("") : colour.slice(1);
  const value = parseInt(digits, 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}
