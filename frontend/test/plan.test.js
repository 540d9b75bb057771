import assert from "node:assert/strict";
import test from "node:test";

import { ticks } from "../src/plan/chart.js";
import { labelled, NOW, nowOf, stopsOf, written } from "../src/plan/stops.js";

test("ticks are round and lie between the ends", () => {
  assert.deepEqual(ticks(43.2, 58.4), [45, 50, 55]);
  assert.deepEqual(ticks(0.101, 0.139), [0.11, 0.12, 0.13]);
});

test("where nothing varies there are few ticks", () => {
  assert.ok(ticks(50, 50).length <= 1);
});

test("what the record has stands among the values, and is none of them", () => {
  assert.deepEqual(stopsOf(["1", "2", "5", "10"], { least: 4.52, most: 5.02 }), ["1", "2", NOW, "10"]);
  assert.deepEqual(stopsOf(["0.5", "2"], { least: 1, most: 1 }), ["0.5", NOW, "2"]);
  assert.deepEqual(stopsOf(["5", "25"], { least: 30, most: Infinity }), ["5", "25", NOW]);
  assert.deepEqual(stopsOf(["float32", "bfloat16"], "float32"), [NOW, "bfloat16"]);
  assert.deepEqual(stopsOf(["2", "4"], null), [NOW, "2", "4"]);
});

test("what the record has is known from the plan, and written with its range", () => {
  const plan = /** @type {any} */ ({ world_size: 4, buckets: { cap_mb: [4.523, 5.02], dtype: "Float" } });
  assert.equal(written(nowOf("ranks", plan), ""), "4");
  assert.equal(written({ least: 1024, most: 1024 }, ""), "1,024", "and not 1020");
  assert.equal(written(nowOf("bucket_mb", plan), "MiB"), "4.52 to 5.02 MiB");
  assert.equal(written(nowOf("bucket_mb", /** @type {any} */ ({ buckets: { cap_mb: [29.6, null] } })), "MiB"), "29.6 MiB or more");
  assert.equal(nowOf("dtype", plan), "float32");
  assert.equal(nowOf("workers", plan), null);
  assert.equal(nowOf("bucket_mb", null), null);
});

test("labels of a slider do not stand on each other", () => {
  assert.deepEqual(labelled(["1", "2", NOW, "10", "25"]), [[0, "1"], [2, "now"], [4, "25"]]);
  assert.deepEqual(labelled(["1", "2", NOW, "10", "1024"])[2], [4, "1,024"]);
  assert.deepEqual(labelled([NOW, ..."abcdefghij"]), [[0, "now"], [10, "j"]]);
});
