// Gaps by length: node --test frontend/test

import assert from "node:assert/strict";
import { test } from "node:test";

import { concentration, gapSum, rowsOf } from "../src/chart/histogram.js";

/** @param {[number, number, number, number][]} rows */
const gaps = (rows, shorter_ms = 0) => ({ bins: rows.map(([from_ms, to_ms, count, sum_ms]) => ({ from_ms, to_ms, count, sum_ms })), shorter_ms, kept_from_ms: 0.05 });

test("many lengths are joined to powers of ten, and no gap is lost", () => {
  const edges = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2];
  const rows = rowsOf(gaps(edges.slice(0, -1).map((from, i) => [from, edges[i + 1], 1, from])));
  assert.deepEqual(rows.map(({ from_ms, to_ms, count }) => [from_ms, to_ms, count]), [[0.001, 0.01, 3], [0.01, 0.1, 3], [0.1, 1, 3], [1, 10, 1]]);
});

test("a few long gaps that make most of the sum are said, an even spread is not", () => {
  assert.equal(concentration(rowsOf(gaps([[0.1, 0.2, 70, 8], [5, 10, 12, 60]]))), "12 of 82\u00a0gaps are 88\u00a0% of the sum");
  assert.equal(concentration(rowsOf(gaps([[5, 10, 12, 60]]))), "");
  assert.equal(concentration([]), "");
});

test("what is too short to be counted is said too", () => {
  assert.equal(gapSum(gaps([[1, 2, 2, 3]], 1)), "2\u00a0gaps, 3.0\u00a0ms, and 1.0\u00a0ms in shorter ones");
  assert.equal(gapSum(gaps([], 1)), "1.0\u00a0ms in gaps too short to count");
});
