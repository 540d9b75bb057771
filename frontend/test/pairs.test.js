// The matrix of ranks against ranks: node --test frontend/test

import assert from "node:assert/strict";
import { test } from "node:test";

import { MOST_ROWS, busbw, placesOf, pointToPoint } from "../src/communication/pairs.js";

/** @param {string} group @param {number[]} ranks @param {number} us */
const of = (group, ranks, us, more = {}) => ({ kind: "all_reduce", group, parallelism: "TP", ranks, size: ranks.length, bus_factor: 1, calls: 10, mean_bytes: 1e6, mean_transfer_us: us, is_slow: false, ...more });
/** @param {number} n */
const each = (n) => placesOf(Array.from({ length: n }, (_, rank) => rank), [])[0].places;
const nodes = placesOf([0, 1, 2, 3], ["a", "a", "b", "b"]).find(({ id }) => id === "node")?.places ?? [];
/** @param {{value: Float64Array}} matrix @param {number} n cells that have a value */
const cells = ({ value }, n) => [...value.entries()].filter(([, one]) => !Number.isNaN(one)).map(([i, one]) => [Math.floor(i / n), i % n, one]);

test("ranks of one sub-group have its busbw, both ways, and those of none have no cell", () => {
  const matrix = busbw([of("a", [0, 1], 100), of("b", [2, 3], 400, { is_slow: true })], each(4), 4);
  assert.deepEqual(cells(matrix, 4), [[0, 1, 10], [1, 0, 10], [2, 3, 2.5], [3, 2, 2.5]]);
  assert.deepEqual([...matrix.slow.keys()].filter((i) => matrix.slow[i]), [2 * 4 + 3, 3 * 4 + 2]);
});

test("of two groups that hold both ranks, all bytes over all time", () => {
  assert.deepEqual(cells(busbw([of("a", [0, 1], 100), of("b", [0, 1], 300)], each(3), 3), 3), [[0, 1, 5], [1, 0, 5]]);
});

test("a group of all ranks, and one of unknown size, say nothing of pairs", () => {
  assert.deepEqual(cells(busbw([of("world", [0, 1], 100), of("x", [0], 100, { size: 2, mean_bytes: null })], each(2), 2), 2), []);
});

test("of nodes, a group within one is on the diagonal, and one between two beside it", () => {
  assert.deepEqual(cells(busbw([of("tp", [0, 1], 100), of("dp", [1, 3], 400)], nodes, 4), 2), [[0, 0, 10], [0, 1, 2.5], [1, 0, 2.5]]);
});

test("point-to-point transfers go from rows to columns: bytes over time, or how many", () => {
  /** @type {import("../src/communication/pairs.js").Sent[]} */
  const sent = [[0, 2, 4, 8e6, 1000], [1, 3, 4, 8e6, 3000], [2, 0, 1, null, null]];
  assert.deepEqual(cells(pointToPoint(sent, each(4), "rate"), 4), [[0, 2, 8], [1, 3, 8 / 3]]);
  assert.deepEqual(cells(pointToPoint(sent, nodes, "rate"), 2), [[0, 1, 4]]);
  assert.deepEqual(cells(pointToPoint(sent, nodes, "count"), 2), [[0, 1, 8], [1, 0, 1]]);
});

test("too many ranks are shown by node, and without nodes several in a row", () => {
  const ranks = Array.from({ length: 4 * MOST_ROWS }, (_, rank) => rank);
  assert.deepEqual(placesOf(ranks, ranks.map((rank) => `n${Math.floor(rank / 8)}`)).map(({ id, places }) => [id, places.length]), [["node", MOST_ROWS / 2]]);
  const [{ places }] = placesOf(ranks, []);
  assert.equal(places.length, MOST_ROWS);
  assert.deepEqual(places[1], { name: "ranks 4-7", ranks: [4, 5, 6, 7] });
});

/** Eight ranks with the dimensions dp (stride 4), pp (stride 2) and tp, and experts on the ranks of dp. */
const mesh = {
  dimensions: ["dp", "pp", "tp", "ep"].map((name) => ({ name, is_axis: name !== "ep" })),
  coordinates: Object.fromEntries(Array.from({ length: 8 }, (_, rank) => [String(rank), { dp: rank >> 2, pp: (rank >> 1) & 1, tp: rank & 1, ep: rank >> 2 }])),
};
const eight = [...Array(8).keys()];

test("of a mesh the ranks of one group stand together, with their coordinates", () => {
  const cuts = placesOf(eight, [], mesh);
  assert.deepEqual(cuts.map(({ id }) => id), ["rank", "rank of dp", "rank of pp", "rank of tp", "dp", "pp", "tp"]);
  const ofData = cuts[1].places;
  assert.deepEqual(ofData.map(({ ranks }) => ranks[0]), [0, 4, 1, 5, 2, 6, 3, 7]);
  assert.equal(ofData[3].where, "dp 1, pp 0, tp 1");
  const groups = [0, 1, 2, 3].map((rank) => of(`dp${rank}`, [rank, rank + 4], 100));
  // Blocks of two along the diagonal.
  assert.deepEqual(cells(busbw(groups, ofData, 8), 8).map(([a, b]) => [a, b]), [[0, 1], [1, 0], [2, 3], [3, 2], [4, 5], [5, 4], [6, 7], [7, 6]]);
});

test("each place of a dimension is a row with all its ranks", () => {
  const stages = placesOf(eight, [], mesh).find(({ id }) => id === "pp")?.places ?? [];
  assert.deepEqual(stages, [{ name: "pp 0", ranks: [0, 1, 4, 5] }, { name: "pp 1", ranks: [2, 3, 6, 7] }]);
  /** @type {import("../src/communication/pairs.js").Sent[]} */
  const sent = eight.filter((rank) => !(rank & 2)).map((rank) => [rank, rank + 2, 3, null, null]);
  assert.deepEqual(cells(pointToPoint(sent, stages, "count"), 2), [[0, 1, 12]]);
});

test("a job of one dimension has no rows by it", () => {
  const one = { ...mesh, dimensions: mesh.dimensions.slice(0, 1) };
  assert.deepEqual(placesOf(eight, [], one).map(({ id }) => id), ["rank"]);
});
