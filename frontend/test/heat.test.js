import assert from "node:assert/strict";
import { test } from "node:test";

import { rgb, shading, slowest } from "../src/heat.js";

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
