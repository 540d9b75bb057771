import assert from "node:assert/strict";
import { test } from "node:test";

import { bySimilarity } from "../src/runs/similar.js";
import { size } from "../src/runs/look.js";
import { arranged } from "../src/runs/order.js";

const run = (name, lost_ms = 0, more = {}) => ({ name, state: "ready", verdict: lost_ms ? "straggler" : "healthy", severity: "major", lost_ms, step_ms: 100, unexplained_ms: 0, ...more });
const names = (rows) => rows.map((row) => ("run" in row ? row.name : `${row.group}/ ${row.runs}`));
const shown = (runs, { order = "cost", filter = "", closed = [] } = {}) => names(arranged(runs, order, filter, new Set(closed)));

test("by cost: the largest share lost, then healthy, unknown, and what is not read", () => {
  const runs = [
    run("waiting", 0, { state: "queued", verdict: null }),
    run("unknown", 0, { verdict: "unknown" }),
    run("healthy"),
    run("long", 50, { step_ms: 1000 }),
    run("short", 40, { step_ms: 60 }),
    run("unexplained", 0, { verdict: "unexplained", unexplained_ms: 30 }),
  ];
  assert.deepEqual(shown(runs), ["short", "unexplained", "long", "healthy", "unknown", "waiting"]);
});

test("by name numbers count, by step time the longest is first", () => {
  const runs = [run("job10", 0, { step_ms: 5 }), run("job9", 0, { step_ms: 7 }), run("job1", 0, { step_ms: null })];
  assert.deepEqual(shown(runs, { order: "name" }), ["job1", "job9", "job10"]);
  assert.deepEqual(shown(runs, { order: "step" }), ["job9", "job10", "job1"]);
});

test("newest first: by the newest file, those of which that is unknown last", () => {
  const runs = [run("remote", 0, { modified_s: null }), run("yesterday", 9, { modified_s: 1000 }), run("today", 0, { modified_s: 2000 })];
  assert.deepEqual(shown(runs, { order: "newest" }), ["today", "yesterday", "remote"]);
});

test("folders are groups, in the order of their first run; one that is closed shows its name", () => {
  const runs = [run("a/one"), run("b/two", 30), run("alone", 10), run("b/deep/three", 5), run("b/four")];
  assert.deepEqual(shown(runs), ["b/ 2", "two", "four", "alone", "b/deep/ 1", "three", "a/ 1", "one"]);
  assert.deepEqual(shown(runs, { closed: ["b"] }), ["b/ 2", "alone", "b/deep/ 1", "three", "a/ 1", "one"]);
});

test("the filter takes names and verdicts, and opens folders", () => {
  const runs = [run("a/one"), run("b/two", 30)];
  assert.deepEqual(shown(runs, { filter: " STRAGGLER", closed: ["b"] }), ["b/ 1", "two"]);
  assert.deepEqual(shown(runs, { filter: "a/o" }), ["a/ 1", "one"]);
  assert.deepEqual(shown(runs, { filter: "nothing" }), []);
});

test("the run most similar comes first: as many ranks, a like name, a like step time", () => {
  const run = (/** @type {string} */ name, /** @type {number | null} */ world_size, /** @type {number | null} */ step_ms) => /** @type {any} */ ({ name, world_size, step_ms });
  const runs = [run("other", 8, 900), run("gpt/bucket_25", 8, 110), run("gpt/bucket_50", 64, 100), run("unread", null, null), run("gpt/bucket_100", 8, 100)];
  const sorted = bySimilarity(runs, { name: "gpt/bucket_10", world_size: 8, step_ms: 101 }).map(({ name }) => name);
  assert.deepEqual(sorted, ["gpt/bucket_100", "gpt/bucket_25", "gpt/bucket_50", "other", "unread"]);
});

test("a run of snapshots has neither ranks nor steps", () => {
  assert.equal(size(run("out", 0, { kind: "memory", ranks: 5, world_size: null, steps: null })), "5\u00a0snapshots");
  assert.equal(size(run("hang", 0, { kind: "dumps", ranks: 3, world_size: 4, steps: null })), "3 of 4\u00a0ranks, dumps");
  assert.equal(size(run("train", 0, { ranks: 4, world_size: 4, steps: 1 })), "4\u00a0ranks, 1\u00a0step");
});
