// Where each rank stands in a job's mesh: two dimensions as rows and columns, the others as panels. Pure.
//
//   rows tp, columns dp, panels pp:   pp 0        pp 1
//                             tp 0   0  2  4     6  8 10
//                             tp 1   1  3  5     7  9 11

/** @typedef {import("../../schema.js").MeshTable} MeshTable */
/** @typedef {import("../../schema.js").MeshDimension} MeshDimension */
/** @typedef {{rows: string, columns: string, panels: string[]}} Layout names of dimensions */
/**
 * @typedef {object} Panel
 * @property {string} name its places, "pp 1" or "pp 1, cp 0"; "" where there is but one panel
 * @property {number[][][]} cells by row and column, the indices of the ranks there: none, one, or several that the layout does not tell apart
 */

/** Rows of more places are columns: a screen is wider than high. */
const MOST_ROWS = 16;

/**
 * The dimensions that divide the ranks each in a way of its own, and tell every rank's place.
 * @param {MeshTable | null} mesh
 * @returns {MeshDimension[]}
 */
export const axesOf = (mesh) => mesh?.dimensions.filter(({ is_axis, size }) => is_axis && size > 1) ?? [];

/**
 * Which dimension is drawn how: those asked for, else the innermost as rows, stages as panels. No dimension is drawn twice.
 * @param {MeshTable} mesh
 * @param {string | undefined} rows
 * @param {string | undefined} columns
 * @returns {Layout}
 */
export function layoutOf(mesh, rows, columns) {
  const axes = axesOf(mesh);
  const stages = axes.length > 2 ? "pp" : "";
  const flat = axes.filter(({ name }) => name !== stages);
  const asked = (/** @type {string | undefined} */ name) => mesh.dimensions.find((one) => one.name === name)?.name;
  const innermost = flat.filter(({ name }) => name !== columns).sort((a, b) => Number(a.size > MOST_ROWS) - Number(b.size > MOST_ROWS) || (a.stride || Infinity) - (b.stride || Infinity));
  const down = asked(rows) ?? innermost[0]?.name ?? "";
  const largest = flat.filter(({ name }) => name !== down).sort((a, b) => b.size - a.size);
  const across = (columns === down ? undefined : asked(columns)) ?? largest[0]?.name ?? axes.find(({ name }) => name !== down)?.name ?? "";
  const others = axes.map(({ name }) => name).filter((name) => name !== down && name !== across);
  const within = [down, across].filter((name) => !axes.some((axis) => axis.name === name));
  return { rows: down, columns: across, panels: others.filter((name) => !within.some((inner) => liesAlong(mesh, inner, name))) };
}

/**
 * Whether a dimension divides the ranks that differ along an axis alone, as groups of experts divide data parallel ranks.
 * @param {MeshTable} mesh
 * @param {string} inner
 * @param {string} axis
 */
function liesAlong(mesh, inner, axis) {
  const axes = axesOf(mesh).filter(({ name }) => name !== axis);
  /** @type {Map<string, number>} */
  const first = new Map();
  return Object.values(mesh.coordinates).some((place) => {
    const line = axes.map(({ name }) => place[name]).join();
    if (!first.has(line)) first.set(line, place[inner]);
    return first.get(line) !== place[inner];
  });
}

/**
 * The panels of a layout, in the order of their places.
 * @param {MeshTable} mesh
 * @param {number[]} ranks
 * @param {Layout} layout
 * @returns {Panel[]}
 */
export function panelsOf(mesh, ranks, layout) {
  const size = new Map(mesh.dimensions.map((one) => [one.name, one.size]));
  const [down, across] = [size.get(layout.rows) ?? 1, size.get(layout.columns) ?? 1];
  /** @type {Map<string, Panel & {at: number[]}>} */
  const panels = new Map();
  ranks.forEach((rank, i) => {
    const place = mesh.coordinates[rank] ?? {};
    const [row, column] = [place[layout.rows] ?? 0, place[layout.columns] ?? 0];
    const at = layout.panels.map((name) => place[name] ?? -1);
    if (row >= down || column >= across || !(layout.rows in place) || !(layout.columns in place) || at.includes(-1)) return;
    const name = layout.panels.map((dimension, n) => `${dimension} ${at[n]}`).join(", ");
    let panel = panels.get(name);
    if (!panel) panels.set(name, (panel = { name, at, cells: Array.from({ length: down }, () => Array.from({ length: across }, () => /** @type {number[]} */ ([]))) }));
    panel.cells[row][column].push(i);
  });
  return [...panels.values()].sort((a, b) => a.at.map((place, n) => place - b.at[n]).find(Boolean) ?? 0).map(({ name, cells }) => ({ name, cells }));
}

/** @param {number[]} values */
const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : NaN);

/**
 * The mean of the ranks in each cell, NaN where there are none; and of each row, each column, and the whole panel.
 * @param {Panel} panel
 * @param {number[]} values of each rank
 */
export function meansOf({ cells }, values) {
  const of = (/** @type {number[]} */ some) => mean(some.map((i) => values[i]));
  return {
    cells: cells.map((row) => row.map(of)),
    rows: cells.map((row) => of(row.flat())),
    columns: (cells[0] ?? []).map((_, column) => of(cells.flatMap((row) => row[column]))),
    all: of(cells.flat(2)),
  };
}

/**
 * Where panels stand in a picture, CSS pixels: in rows of as many as leave a cell wide enough to point at, or of fewer that
 * leave no row nearly empty.
 * @param {number} width of the picture
 * @param {{rows: number, columns: number, panels: number}} count
 * @param {{names: number, title: number}} text how wide the names of rows and the titles of panels are
 */
export function placed(width, { rows, columns, panels }, text) {
  const [head, gap, bar, least, most] = [40, 16, 34, 9, 40];
  const roomOf = (/** @type {number} */ beside) => (width - text.names) / beside - gap;
  let beside = panels;
  while (beside > 1 && (roomOf(beside) < text.title || (roomOf(beside) - bar) / columns < least)) beside--;
  beside = Math.ceil(panels / Math.ceil(panels / beside)); // as many in each row, where that goes
  const wide = Math.max(0.1, Math.min(most, (roomOf(beside) - bar) / columns));
  const tall = Math.max(4, Math.min(22, wide));
  const [across, down] = [Math.max(wide * columns + bar, text.title) + gap, head + tall * rows + bar + gap];
  return {
    wide,
    tall,
    bar,
    height: Math.ceil(panels / beside) * down,
    /** The upper left corner of a panel's cells. */
    at: (/** @type {number} */ panel) => ({ x: text.names + (panel % beside) * across, y: head + Math.floor(panel / beside) * down, isFirst: panel % beside === 0 }),
  };
}
