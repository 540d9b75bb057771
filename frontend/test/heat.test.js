import assert from "node:assert/strict";
import { test } from "node:test";

import { joinedRows, present, rgb, shading } from "../src/heat.js";
import { slowest } from "../src/ranks/per_step.js";

test("an even job stays pale, however long its steps are", () => {
  const { of } = shading([100, 101, 99, 100]);
  assert.ok([100, 101, 99].every((value) => of(value) < 0.05));
});

test("one value far above the median is full, and below the median nothing is shaded", () => {
  const { of, median, full } = shading([10, 10, 10, 40]);
  assert.deepEqual([median, full, of(40), of(10), of(5)], [10, 40, 1, 0, 0]);
});

test("the slowest rank of each step is found where it moves, and nobody where none stands out", () => {
  const grid = [
    [50, 10, 10, null],
    [10, 50, 10.5, 10],
    [10, 10, 10, 50],
  ];
  assert.deepEqual(slowest(grid), [0, 1, null, 2]);
  assert.deepEqual(slowest([]), []);
});

test("colours of the style sheet, short and long", () => {
  assert.deepEqual(rgb("#fff"), [255, 255, 255]);
  assert.deepEqual(rgb("#cb3f53"), [203, 63, 83]);
});

test("of many ranks a row is the longest of several, and missing values give way to those that are there", () => {
  const grid = [[1, null], [3, null], [2, 5], [9, 1], [4, 4]];
  assert.deepEqual(joinedRows(grid, 3), { of: 2, rows: [[3, null], [9, 5], [4, 4]] });
  assert.equal(joinedRows(grid, 5).rows, grid);
  assert.deepEqual([...present(grid)], [1, 3, 2, 5, 9, 1, 4, 4]);
});
