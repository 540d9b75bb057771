import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.document ??= /** @type {any} */ ({ getElementById: () => null });
const { spansOf } = await import("../src/layers/in_step.js");

/** Launches of forward and backward, and the kernels: of layers 0 and 1, a gather of layer 1, and one of the step before. */
const SLICE = /** @type {any} */ ({
  owners: ["compute", "copy", "communication"],
  ranks: [
    {
      modules: ["layers.0", "layers.0.mlp", "layers.1", "layers.10"],
      lanes: [
        { role: "main", start_us: [10], length_us: [5], owner: [0], module: [0], launch: [1] },
        { role: "autograd", start_us: [60], length_us: [5], owner: [0], module: [0], launch: [2] },
        { role: "stream", start_us: [20, 30, 40, 70, 5], length_us: [10, 10, 10, 10, 1], owner: [0, 0, 0, 0, 0], module: [0, 1, 2, 1, 0], launch: [1, 1, 1, 2, 1] },
        { role: "stream", start_us: [50, 52], length_us: [10, 1], owner: [2, 2], module: [2, 3], launch: [1, 1] },
      ],
    },
  ],
});

/** @param {string} path */
const told = (path) => spansOf(SLICE, path, 10, 100).map(({ part, from, to }) => `${part} ${Math.round(100 * from)} to ${Math.round(100 * to)}`);

test("a module's kernels lie in the step with those of modules within it, forward and backward", () => {
  assert.deepEqual(told("layers.0"), ["forward 10 to 30", "backward 60 to 70"]);
});

test("communication is apart, and a module's name is no other one's beginning", () => {
  assert.deepEqual(told("layers.1"), ["forward 30 to 40", "communication 40 to 50"]);
});
