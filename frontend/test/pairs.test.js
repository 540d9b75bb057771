// The matrix of ranks against ranks: node --test frontend/test

import assert from "node:assert/strict";
import { test } from "node:test";

import { busbwPairs } from "../src/communication/pairs.js";

/** @param {string} group @param {number[]} ranks @param {number} us */
const of = (group, ranks, us, more = {}) => ({ kind: "all_reduce", group, parallelism: "TP", ranks, size: ranks.length, bus_factor: 1, calls: 10, mean_bytes: 1e6, mean_transfer_us: us, is_slow: false, ...more });
const name = (/** @type {{group: string}} */ { group }) => group;

test("ranks of one sub-group have its busbw, both ways, and those of none have no cell", () => {
  const pairs = busbwPairs([of("a", [0, 1], 100), of("b", [2, 3], 400, { is_slow: true })], [0, 1, 2, 3], 4, name);
  assert.deepEqual(pairs.map(({ a, b, value, slow }) => [a, b, value, slow]), [[0, 1, 10, false], [1, 0, 10, false], [2, 3, 2.5, true], [3, 2, 2.5, true]]);
});

test("of two groups that hold both ranks, all bytes over all time", () => {
  const [pair] = busbwPairs([of("a", [0, 1], 100), of("b", [0, 1], 300)], [0, 1, 2], 3, name);
  assert.equal(pair.value, 5);
  assert.equal(pair.of, "a, b");
});

test("a group of all ranks, and one of unknown size, say nothing of pairs", () => {
  assert.deepEqual(busbwPairs([of("world", [0, 1], 100), of("x", [0], 100, { size: 2, mean_bytes: null })], [0, 1], 2, name), []);
});
