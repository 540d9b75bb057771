// The meshes that a plan offers: node --test frontend/test

import assert from "node:assert/strict";
import { test } from "node:test";

import { codeOf } from "../src/plan/words.js";
import { meshesOf } from "../src/plan/meshes.js";

/** @param {Record<string, number>} sizes */
const of = (sizes) => ({ dimensions: Object.entries(sizes).map(([name, size]) => ({ name, size })) });

test("other meshes have as many ranks, along the recorded dimensions", () => {
  assert.deepEqual(meshesOf(of({ dp: 2, pp: 2, tp: 2 })), ["dp=1,tp=1,pp=8", "dp=1,tp=2,pp=4", "dp=1,tp=4,pp=2", "dp=1,tp=8,pp=1", "dp=2,tp=1,pp=4", "dp=2,tp=4,pp=1", "dp=4,tp=1,pp=2", "dp=4,tp=2,pp=1", "dp=8,tp=1,pp=1"]);
  assert.deepEqual(meshesOf(of({ dp: 4, tp: 2, ep: 4 })), ["dp=1,tp=8", "dp=2,tp=4", "dp=8,tp=1"]);
});

test("sizes are at most four times as large or small as now", () => {
  assert.deepEqual(meshesOf(of({ dp: 64, tp: 8 })), ["dp=16,tp=32", "dp=32,tp=16", "dp=128,tp=4", "dp=256,tp=2"]);
});

test("a job of one dimension has no other mesh", () => {
  assert.deepEqual(meshesOf(of({ dp: 8 })), []);
  assert.deepEqual(meshesOf(null), []);
});

test("a mesh is written as Megatron-LM's options", () => {
  assert.equal(codeOf(new URLSearchParams({ mesh: "dp=4,tp=2,pp=2" })), "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2  # Megatron-LM; data parallelism takes what is left, 4");
});
