// The meshes that a job can be planned with: as many ranks as now, along the dimensions that its record shows. Pure.

/** Each dimension is at most so many times as large or as small as now. */
const MOST = 4;
const PLANNED = ["dp", "tp", "pp"];

/**
 * Other meshes of as many ranks, as the plan's route takes them ("dp=4,tp=2,pp=2"); none of a job of fewer than two of these
 * dimensions. A dimension of one rank stays so: the record lacks what it would send.
 * @param {{dimensions: {name: string, size: number}[]} | null} mesh
 */
export function meshesOf(mesh) {
  const now = new Map((mesh?.dimensions ?? []).map(({ name, size }) => [name, size]));
  const sizes = PLANNED.filter((name) => (now.get(name) ?? 1) > 1).map((name) => /** @type {[string, number]} */ ([name, now.get(name) ?? 1]));
  if (sizes.length < 2) return [];
  const all = sizes.reduce((product, [, size]) => product * size, 1);
  /** @type {number[][]} */
  let found = [[]];
  for (const [, size] of sizes) found = found.flatMap((some) => near(size, all).map((one) => [...some, one]));
  const written = found.filter((one) => one.reduce((product, size) => product * size, 1) === all).map((one) => one.map((size, i) => `${sizes[i][0]}=${size}`).join(","));
  return written.filter((text) => text !== sizes.map(([name, size]) => `${name}=${size}`).join(","));
}

/**
 * Divisors of all ranks that are near a size, ascending.
 * @param {number} size
 * @param {number} all
 */
function near(size, all) {
  const found = [];
  for (let one = Math.ceil(size / MOST); one <= Math.min(size * MOST, all); one++) if (all % one === 0) found.push(one);
  return found;
}
