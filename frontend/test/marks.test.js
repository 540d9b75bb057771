// Which rows and columns of a large picture are named: node --test frontend/test

import assert from "node:assert/strict";
import { test } from "node:test";

import { namedColumns, namedRows } from "../src/chart/marks.js";

const none = () => false;

test("few rows are all named", () => {
  assert.deepEqual(namedRows(5, 14, none), [0, 1, 2, 3, 4]);
  assert.deepEqual(namedRows(1, 1, none), [0]);
});

test("of many rows the affected are named, and some at round places, none over another", () => {
  assert.deepEqual(namedRows(1024, 1, none), [0, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000]);
  const affected = (/** @type {number} */ row) => row === 210 || (row >= 616 && row < 624) || row === 505;
  assert.deepEqual(namedRows(1024, 1, affected), [0, 100, 210, 300, 400, 505, 600, 616, 700, 800, 900, 1000]);
});

test("columns are named at round numbers, wherever they begin", () => {
  const steps = Array.from({ length: 100 }, (_, i) => i + 2);
  assert.deepEqual(namedColumns(steps, 1000).map((column) => steps[column]), [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]);
  assert.deepEqual(namedColumns([5], 1000), [0]);
  assert.deepEqual(namedColumns([1, 3, 5], 300), [0, 1, 2]);
});
