import assert from "node:assert/strict";
import test from "node:test";

import { ticks } from "../src/plan/chart.js";

test("ticks are round and lie between the ends", () => {
  assert.deepEqual(ticks(43.2, 58.4), [45, 50, 55]);
  assert.deepEqual(ticks(0.101, 0.139), [0.11, 0.12, 0.13]);
});

test("where nothing varies there are few ticks", () => {
  assert.ok(ticks(50, 50).length <= 1);
});
