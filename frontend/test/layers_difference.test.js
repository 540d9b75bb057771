import assert from "node:assert/strict";
import { test } from "node:test";

import { changedRows } from "../src/layers/difference.js";

const module = (/** @type {string} */ path, /** @type {number} */ level, /** @type {number} */ before_ms, /** @type {number} */ after_ms) => ({ path, level, before_ms, after_ms });
const kernel = (/** @type {string} */ path, /** @type {string} */ name, /** @type {number} */ before_ms, /** @type {number} */ after_ms) => ({ path, part: "forward", operator: "", kernel: name, before_ms, after_ms });

test("a module has its kernels below, those that changed most first, before the modules within it", () => {
  const rows = changedRows([module("", 0, 10, 11), module("a", 1, 4, 5), module("a.b", 2, 1, 1)], [kernel("a", "gemm", 1, 1.2), kernel("a", "norm", 2, 2.8), kernel("", "adam", 3, 3)]);
  assert.deepEqual(
    rows.map(({ name, level }) => [name, level]),
    [["step", 0], ["adam", 1], ["a", 1], ["norm", 2], ["gemm", 2], ["b", 2]],
  );
  assert.equal(rows[3].said, "norm, forward, of a");
});

test("a box is as wide as all differences within it, also where these cancel out", () => {
  const rows = changedRows([module("", 0, 10, 10), module("a", 1, 4, 7), module("b", 1, 6, 3)], []);
  assert.deepEqual(rows.map(({ step_ms }) => step_ms), [6, 3, 3]);
});
