import assert from "node:assert/strict";
import { test } from "node:test";

import { cut, kindsOf, perNode, sorted } from "../src/cuts.js";

const diagnosis = {
  setting: { device: "cuda" },
  ranks: [0, 1, 2, 10],
  budget_ms: {
    0: { compute: 10, wait: 30 },
    1: { compute: 40, wait: 0 },
    2: { compute: 20, wait: 20 },
    10: { compute: 30, wait: 10 },
  },
  phases_ms: { 0: { forward: 15, backward: 25 } },
};
const views = { nodes: ["node10", "node2", "node10", "node2"] };
const [owners, phases] = kindsOf(diagnosis);
const rows = cut({ diagnosis, views }, owners);
const names = (some) => some.map(({ name }) => name);

test("a row sums to its step, and its busy time leaves straggler wait out", () => {
  assert.deepEqual(rows.map(({ total }) => total), [40, 40, 40, 40]);
  assert.deepEqual(rows.map(({ busy }) => busy), [10, 40, 20, 30]);
});

test("phases are offered only where the traces tell them", () => {
  assert.equal(phases.id, "phases");
  assert.deepEqual(kindsOf({ ...diagnosis, phases_ms: {} }), [owners]);
  assert.deepEqual(cut({ diagnosis, views }, phases)[0].values, [0, 15, 25, 0, 0]);
});

test("rows are sorted by rank, by node as people count, and by busy time", () => {
  assert.deepEqual(names(sorted(rows, "busy")), ["rank 1", "rank 10", "rank 2", "rank 0"]);
  assert.deepEqual(names(sorted(rows, "node")), ["rank 1", "rank 10", "rank 0", "rank 2"]);
  assert.deepEqual(names(sorted(sorted(rows, "busy"), "rank")), ["rank 0", "rank 1", "rank 2", "rank 10"]);
});

test("a node is the mean of its ranks", () => {
  const [first, second] = perNode(rows);
  assert.deepEqual([first.name, first.ranks, first.busy, first.total], ["node10", [0, 2], 15, 40]);
  assert.deepEqual([second.name, second.ranks, second.busy], ["node2", [1, 10], 35]);
});
