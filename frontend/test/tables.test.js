// Sorting, filtering and saving tables, and logarithmic axes: node --test frontend/test

import assert from "node:assert/strict";
import { test } from "node:test";

import { axisOf, logTicks, place } from "../src/chart/log.js";
import { filtered, ordered, plain, sortOf } from "../src/grid.js";
import { csv } from "../src/table.js";

test("rows sort by number or text, what is missing last either way", () => {
  const rows = [["rank 2", 3], ["rank 10", null], ["rank 1", 7]];
  assert.deepEqual(ordered(rows, 1, true).map(([name]) => name), ["rank 1", "rank 2", "rank 10"]);
  assert.deepEqual(ordered(rows, 1, false).map(([name]) => name), ["rank 2", "rank 1", "rank 10"]);
  assert.deepEqual(ordered(rows, 0, false).map(([name]) => name), ["rank 1", "rank 2", "rank 10"]);
});

test("equal rows keep their order", () => {
  const rows = [["b", 1], ["a", 1], ["c", 1]];
  assert.deepEqual(ordered(rows, 1, true), rows);
});

test("a filter wants all its words, in any order and case", () => {
  const rows = [["aten::mm", 1], ["aten::addmm", 2], ["cudaLaunchKernel", 3]];
  assert.deepEqual(filtered(rows, "MM aten"), rows.slice(0, 2));
  assert.deepEqual(filtered(rows, " "), rows);
});

test("what a spreadsheet would calculate is saved as text", () => {
  const rows = ["=1+1", "+1", "-1", "@x", "\tx", 'a,"b"'].map((text) => [text, -2.5]);
  const lines = csv({ heads: ["name", "ms"], rows }).trimEnd().split("\r\n");
  assert.deepEqual(lines.slice(1, 6).map((line) => line[0]), ["'", "'", "'", "'", "'"]);
  assert.equal(lines[6], '"a,""b""",-2.5');
});

test("the numbers of a column have as many digits as each other, and none that is there shows as nothing", () => {
  const column = (/** @type {number[]} */ ...values) => values.map((value) => plain(value, Math.max(...values)));
  assert.deepEqual(column(0, 0.0123, 0.5), ["0", "0.012", "0.500"]);
  assert.deepEqual(column(0, 0.0049, 1.5, 128.04), ["0", "<0.01", "1.50", "128.04"]);
  assert.deepEqual(column(0.01, 21_325.46), ["<0.1", "21,325.5"]);
});

test("an axis holds all values, with room", () => {
  const axis = axisOf([10, 1000]);
  assert.ok(place(axis, 10) > 0 && place(axis, 1000) < 1);
  assert.equal(place(axis, 100), 0.5);
  assert.ok(place(axisOf([5]), 5) > 0.3);
});

test("ticks of an axis are round, and as many as are needed", () => {
  assert.deepEqual(logTicks({ low: 0.5, high: 3.5 }), [10, 100, 1000]);
  assert.deepEqual(logTicks({ low: 0, high: 1.1 }), [1, 2, 5, 10]);
  assert.deepEqual(logTicks({ low: 0.5, high: 0.9 }), [4, 5, 6, 7]);
});

test("an address names a column that there is, and its direction", () => {
  const columns = [{ head: "rank" }, { head: "mean, µs" }];
  assert.deepEqual(sortOf("-mean, µs", columns), { column: 1, descending: true });
  assert.deepEqual(sortOf("rank", columns), { column: 0, descending: false });
  for (const other of [undefined, "", "-", "none", "--rank"]) assert.equal(sortOf(other, columns), null);
});

test("a column of changes sorts by how large they are", () => {
  const changes = [["a", 1], ["b", -3], ["c", null], ["d", 2]];
  assert.deepEqual(ordered(changes, 1, true, Math.abs).map(([name]) => name), ["b", "d", "a", "c"]);
});
