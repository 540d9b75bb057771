import assert from "node:assert/strict";
import { test } from "node:test";

import { ownerOf, removedBy } from "../src/model.js";
import { byOwner, byRank, lengthOf, phases, stepToShow, stretches } from "../src/verdict/path.js";

/** A step from pieces in order: rank, owner, phase, ms. */
function stepOf(number, ...pieces) {
  let at = 0;
  const made = pieces.map(([rank, owner, phase, ms]) => ({ rank, owner, phase, what: "", start_ms: (at += ms) - ms, ms }));
  return { step: number, start_ns: 0, end_ns: at * 1e6, pieces: made };
}

test("stretches sum to the step, whatever is drawn as one", () => {
  const short = Array.from({ length: 3000 }, (_, i) => [0, i % 3 ? "compute" : "dispatch", "forward", 0.01]);
  const step = stepOf(1, [0, "host", "other", 50], [0, "host", "other", 20], ...short, [1, "transfer", "backward", 30]);
  const drawn = stretches(step);
  assert.ok(drawn.length < 520, `${drawn.length} stretches`);
  const total = drawn.reduce((sum, { start, end }) => sum + end - start, 0);
  assert.ok(Math.abs(total - lengthOf(step)) < 1e-6);
  assert.deepEqual([drawn[0].owner, drawn[0].end, drawn[0].pieces], ["host", 70, 2]);
  assert.equal(drawn.at(-1).owner, "transfer");
  assert.equal(drawn.reduce((sum, { pieces }) => sum + pieces, 0), step.pieces.length);
});

test("sums by owner are in the owners' order, by rank the longest first", () => {
  const step = stepOf(1, [2, "host", null, 5], [2, "compute", null, 10], [0, "host", null, 30]);
  assert.deepEqual(byOwner(step), [{ key: "compute", ms: 10 }, { key: "host", ms: 35 }]);
  assert.deepEqual(byRank(step), [{ key: 0, ms: 30 }, { key: 2, ms: 15 }]);
});

test("a phase goes on over a short interruption", () => {
  const step = stepOf(1, [0, "compute", "forward", 40], [0, "sync", "other", 0.5], [0, "compute", "forward", 10], [0, "compute", "backward", 49.5]);
  assert.deepEqual(phases(step).map(({ name, end }) => [name, end]), [["forward", 50.5], ["backward", 100]]);
});

test("the step shown is the chosen one, else that of median length", () => {
  const steps = [9, 30, 10].map((ms, i) => stepOf(i, [0, "compute", null, ms]));
  assert.equal(stepToShow(steps, null).step, 2);
  assert.equal(stepToShow(steps, 1).step, 1);
  assert.equal(stepToShow(steps, 7).step, 2);
});

test("a finding has the colour of the owner of most of what its fix removes", () => {
  const measurement = (name, value, owner) => ({ name, value, unit: "ms", ranks: [1], steps: [2], count: null, owner });
  const measurements = [measurement("step now", 183, null), measurement("work", 3, "dispatch"), measurement("outside", 150, "host")];
  assert.deepEqual(removedBy({ measurements }).map(({ owner, ms }) => [owner, ms]), [["dispatch", 3], ["host", 150]]);
  assert.equal(ownerOf({ measurements }), "host");
  assert.equal(ownerOf({ measurements: [] }), "");
});
