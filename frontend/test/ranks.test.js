// What the view of ranks says of many: node --test frontend/test

import assert from "node:assert/strict";
import { test } from "node:test";

import { nodeCount, trainsNothing } from "../src/model.js";
import { groupsOf, places, spreadOf } from "../src/ranks/spread.js";

const RANKS = Array.from({ length: 1024 }, (_, i) => i);
/** @param {number} rank */
const busy = (rank) => (rank === 210 ? 71 : rank >> 3 === 77 ? 64.8 : rank === 500 ? 80 : 59 + (rank % 10) / 100);
const FAULTS = /** @type {any} */ ([{ id: "straggler", rule: "straggler", ranks: [210] }, { id: "slow-node", rule: "slow-node", ranks: RANKS.filter((rank) => rank >> 3 === 77) }, { id: "all", rule: "all", ranks: RANKS }]);

test("ranks of a finding are a group, those that stand out beside them another, and all others are alike", () => {
  const groups = groupsOf(/** @type {any} */ ({ ranks: RANKS, roles: RANKS.map(() => "") }), RANKS.map(busy), FAULTS);
  assert.deepEqual(groups.map(({ ranks }) => ranks.length), [1, 8, 1, 1014]);
  assert.deepEqual(groups.map(({ finding }) => finding?.id), ["straggler", "slow-node", undefined, undefined]);
  assert.deepEqual(groups[2].ranks, [500]);
  assert.equal(groups[0].spread.median, 71);
  assert.ok(groups[3].spread.p99 < 59.1 && groups[3].spread.median >= 59);
  assert.equal(groups.reduce((sum, { ranks }) => sum + ranks.length, 0), RANKS.length);
});

test("ranks of reinforcement learning are comparable within their role", () => {
  const roles = ["rollout", "rollout", "rollout", "update", "update", "update"];
  const groups = groupsOf({ ranks: [0, 1, 2, 3, 4, 5], roles }, [50, 50, 60, 90, 90, 90], []);
  assert.deepEqual(groups.map(({ name, ranks }) => [name, ranks]), [["", [2]], ["comparable rollout", [0, 1]], ["comparable update", [3, 4, 5]]]);
});

test("on how many nodes ranks are is known where that of each is", () => {
  const on = (/** @type {string[]} */ ...nodes) => nodeCount(/** @type {any} */ ({ nodes }));
  assert.deepEqual([on("a", "b", "a"), on("a", ""), nodeCount(null)], [2, 0, 0]);
});

test("no server, pipeline or benchmark has a training loop", () => {
  const kinds = /** @type {const} */ (["training", "recommender", "RL", "unknown", "inference server", "diffusion", "inference", "benchmark"]);
  assert.deepEqual(kinds.filter((kind) => trainsNothing({ kind })), kinds.slice(4));
});

test("a spread is of what is there, in order", () => {
  assert.deepEqual(spreadOf([4, 1, 3, 2, 0]), { min: 0, p1: 0.04, p25: 1, median: 2, p75: 3, p99: 3.96, max: 4 });
  assert.equal(spreadOf([]).median, 0);
});

test("nodes are columns, and eight ranks are where nodes are unknown", () => {
  const nodes = RANKS.map((rank) => `node${rank >> 3}`);
  const told = places(RANKS, nodes);
  assert.deepEqual([told.columns.length, told.rows, told.cells[210]], [128, 8, { column: 26, row: 2 }]);
  const unknown = places([0, 1, 9], ["", "", ""]);
  assert.deepEqual([unknown.columns, unknown.rows], [["rank 0"], 3]);
});
