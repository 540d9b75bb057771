// Many values as shades of one colour. The values are pixels of a small picture that the browser stretches: a thousand
// ranks by a hundred steps cost no more than a few.

/** @typedef {import("./model.js").Grid} Grid */
/** @typedef {(value: number) => number} Shade 0 pale to 1 full */

/**
 * How far a value stands above the median: 0 at or below it, 1 at half as much again, or at the longest if that is
 * more. So an even job stays pale, however long its steps are.
 * @param {number[]} values
 */
export function shading(values) {
  const sorted = Float64Array.from(values).sort();
  const median = sorted[Math.floor((sorted.length - 1) / 2)] ?? 0;
  const longest = sorted[sorted.length - 1] ?? 0;
  const full = Math.max(1.5 * median, longest);
  const of = (/** @type {number} */ value) => (full > median ? Math.max(0, value - median) / (full - median) : 0);
  return { median, full, longest, of };
}

/**
 * The row with the largest value of each column, where it stands out: by a tenth of the column's median or more.
 * @param {Grid} grid
 * @returns {(number | null)[]}
 */
export function slowest(grid) {
  return (grid[0] ?? []).map((_, column) => {
    const values = grid.map((row) => row[column] ?? -1);
    const row = values.reduce((best, value, i) => (value > values[best] ? i : best), 0);
    const present = Float64Array.from(values.filter((value) => value >= 0)).sort();
    const median = present[Math.floor((present.length - 1) / 2)] ?? 0;
    return values[row] > 1.1 * median && present.length > 1 ? row : null;
  });
}

/**
 * @param {Grid} grid
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
      if (value !== null && value !== undefined) out[i * columns + j] = colours[Math.round(255 * shade(value))];
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
