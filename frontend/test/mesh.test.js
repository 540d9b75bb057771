// Where ranks stand in a mesh: node --test frontend/test

import assert from "node:assert/strict";
import { test } from "node:test";

import { axesOf, layoutOf, meansOf, panelsOf, placed } from "../src/ranks/mesh.js";

/**
 * A mesh of axes, the last one the innermost.
 * @param {[string, number][]} axes
 * @param {(rank: number) => boolean} [traced]
 * @returns {any}
 */
function meshOf(axes, traced = () => true) {
  const world = axes.reduce((product, [, size]) => product * size, 1);
  let stride = world;
  const dimensions = axes.map(([name, size]) => ({ name, size, stride: (stride /= size), is_axis: true }));
  const ranks = Array.from({ length: world }, (_, rank) => rank).filter(traced);
  const coordinates = Object.fromEntries(ranks.map((rank) => [rank, Object.fromEntries(dimensions.map((one) => [one.name, Math.floor(rank / one.stride) % one.size]))]));
  return { dimensions, coordinates, ranks };
}

test("tensor ranks are rows, the widest dimension is columns, stages are panels", () => {
  const mesh = meshOf([["pp", 4], ["dp", 16], ["tp", 8]]);
  assert.deepEqual(layoutOf(mesh, undefined, undefined), { rows: "tp", columns: "dp", panels: ["pp"] });
  assert.deepEqual(layoutOf(mesh, "pp", undefined), { rows: "pp", columns: "dp", panels: ["tp"] });
  assert.deepEqual(layoutOf(mesh, undefined, "tp"), { rows: "dp", columns: "tp", panels: ["pp"] });
  assert.deepEqual(layoutOf(mesh, "dp", "dp"), { rows: "dp", columns: "tp", panels: ["pp"] });
  assert.deepEqual(layoutOf(mesh, "made up", "<b>"), { rows: "tp", columns: "dp", panels: ["pp"] });
});

test("two dimensions are one panel, and stages may be rows or columns there", () => {
  const mesh = meshOf([["pp", 2], ["dp", 4]]);
  const layout = layoutOf(mesh, undefined, undefined);
  assert.deepEqual(layout, { rows: "dp", columns: "pp", panels: [] });
  assert.deepEqual(panelsOf(mesh, mesh.ranks, layout), [{ name: "", cells: [[[0], [4]], [[1], [5]], [[2], [6]], [[3], [7]]] }]);
});

test("each rank stands at its place, panel by panel", () => {
  const mesh = meshOf([["pp", 2], ["dp", 3], ["tp", 2]]);
  const panels = panelsOf(mesh, mesh.ranks, layoutOf(mesh, undefined, undefined));
  assert.deepEqual(panels, [
    { name: "pp 0", cells: [[[0], [2], [4]], [[1], [3], [5]]] },
    { name: "pp 1", cells: [[[6], [8], [10]], [[7], [9], [11]]] },
  ]);
  const { cells, rows, columns, all } = meansOf(panels[1], mesh.ranks);
  assert.deepEqual([cells[1], rows, columns, all], [[7, 9, 11], [8, 9], [6.5, 8.5, 10.5], 8.5]);
});

test("four dimensions have a panel for each place of the two others", () => {
  const mesh = meshOf([["pp", 2], ["dp", 4], ["cp", 2], ["tp", 2]]);
  const panels = panelsOf(mesh, mesh.ranks, layoutOf(mesh, undefined, undefined));
  assert.deepEqual(panels.map(({ name }) => name), ["pp 0, cp 0", "pp 0, cp 1", "pp 1, cp 0", "pp 1, cp 1"]);
  assert.equal(panels.flatMap(({ cells }) => cells.flat(2)).length, 32);
});

test("ranks without a trace leave a gap, and ranks without a place are not drawn", () => {
  const mesh = meshOf([["dp", 2], ["tp", 2]], (rank) => rank !== 2);
  mesh.ranks.push(9);
  const [{ cells }] = panelsOf(mesh, mesh.ranks, layoutOf(mesh, undefined, undefined));
  assert.deepEqual(cells, [[[0], []], [[1], [2]]]);
  const means = meansOf({ name: "", cells }, [1, 2, 5, 100]);
  assert.deepEqual([means.cells[0], means.columns, means.all], [[1, NaN], [1.5, 5], 8 / 3]);
});

test("a dimension within others shows the mean of the ranks that it does not tell apart", () => {
  const mesh = meshOf([["dp", 4], ["tp", 2]]);
  mesh.dimensions.push({ name: "ep", size: 2, stride: 2, is_axis: false });
  for (const rank of mesh.ranks) mesh.coordinates[rank].ep = Math.floor(rank / 2) % 2;
  const layout = layoutOf(mesh, "ep", "tp");
  assert.deepEqual(layout, { rows: "ep", columns: "tp", panels: [] });
  assert.deepEqual(axesOf(mesh).map(({ name }) => name), ["dp", "tp"]);
  const panels = panelsOf(mesh, mesh.ranks, layout);
  assert.deepEqual(panels[0].cells, [[[0, 4], [1, 5]], [[2, 6], [3, 7]]]);
  assert.deepEqual(meansOf(panels[0], mesh.ranks).cells, [[2, 3], [4, 5]]);
});

test("panels stand side by side while a cell can be pointed at and titles fit, then below each other", () => {
  const count = { rows: 8, columns: 16, panels: 4 };
  const text = { names: 48, title: 150 };
  const wide = placed(1240, count, text);
  assert.deepEqual([0, 1, 2, 3].map((panel) => wide.at(panel).y), [40, 40, 40, 40]);
  assert.ok(wide.at(3).x + 16 * wide.wide + wide.bar <= 1240);
  const narrow = placed(350, count, text);
  assert.deepEqual([0, 1, 2, 3].map((panel) => narrow.at(panel).x), [48, 48, 48, 48]);
  assert.ok(narrow.height > 3 * wide.height && narrow.at(3).y + 8 * narrow.tall <= narrow.height);
  const even = placed(1050, { rows: 8, columns: 32, panels: 4 }, text);
  assert.deepEqual([0, 1, 2, 3].map((panel) => even.at(panel).isFirst), [true, false, true, false], "two rows of two, and not three and one");
  const few = placed(700, { rows: 2, columns: 2, panels: 4 }, text);
  assert.ok(few.at(1).x - few.at(0).x >= text.title && few.at(1).isFirst === false);
  const many = placed(350, { rows: 8, columns: 512, panels: 8 }, text);
  assert.ok(many.wide > 0 && many.at(0).x + 512 * many.wide + many.bar <= 350);
});
