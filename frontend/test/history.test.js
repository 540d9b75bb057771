import assert from "node:assert/strict";
import { test } from "node:test";

import { clockTicks, instant } from "../src/history/clock.js";
import { bestOf, collectiveTable, excessOf, saidOf } from "../src/history/collective_groups.js";
import { accountOf, binAt, binOf, evenStretches, sharesOf, slowestRows } from "../src/history/model.js";

/** Four bins of ten steps, 100 s each, after which a restart took 50 s. */
const hours = /** @type {any} */ ({ first_step: 40, bin_steps: 10, edges_s: [1000, 1100, 1200, 1350, 1450], lost_s: { stragglers: [5, 15, 0, 0], restarts: [0, 0, 50, 0] } });

test("an instant and a step are in the bin that has them, or the nearest", () => {
  assert.deepEqual([900, 1000, 1099, 1100, 1349, 9999].map((at) => binAt(hours.edges_s, at)), [0, 0, 0, 1, 2, 3]);
  assert.deepEqual([0, 40, 49, 50, 79, 999].map((step) => binOf(hours, step)), [0, 0, 0, 1, 3, 3]);
});

test("the account of a range sums to its time", () => {
  assert.deepEqual(accountOf(hours, { from: 0, to: 2 }), { whole: 200, parts: [["training", 180], ["stragglers", 20], ["restarts", 0]] });
  assert.deepEqual(accountOf(hours, { from: 2, to: 3 }).parts, [["training", 100], ["stragglers", 0], ["restarts", 50]]);
});

test("levels are shares above the median rank, and the slowest rows of a range are named", () => {
  const bytes = [0, 0, 0, 0, 0, 20, 20, 255, 10, 0, 0, 0];
  const heat = /** @type {any} */ ({ ranks: [0, 1, 2], of: 1, nodes: ["a", "a", "a"], level: 0.005, median: btoa(String.fromCharCode(...bytes)), longest: "" });
  const rows = sharesOf(heat, "median");
  assert.ok(Math.abs(rows[1][1] - 0.1) < 1e-6 && Number.isNaN(rows[1][3]));
  assert.deepEqual(slowestRows(rows, { from: 1, to: 4 }, 3, 0.01).map(([row]) => row), [1]);
  assert.deepEqual(slowestRows(rows, { from: 0, to: 4 }, 3, 0.01).map(([row]) => row), [1, 2]);
});

test("midnights and the first named time have the date", () => {
  const midnight = new Date(2026, 8, 22).getTime() / 1000;
  const texts = clockTicks({ from: midnight - 7 * 3600, to: midnight + 13 * 3600 }, 400).map(({ text }) => text);
  assert.deepEqual(texts, ["09-21 18:00", "09-22", "06:00", "12:00"]);
  assert.equal(clockTicks({ from: midnight + 3600, to: midnight + 3660 }, 600)[1].text, "01:00:10");
});

test("times of a log without a clock are since the job's begin", () => {
  assert.equal(instant(5400), "1.5\u00a0h after the start");
  assert.deepEqual(clockTicks({ from: 0, to: 6 * 3600 }, 400).map(({ text }) => text), ["0\u00a0h", "2\u00a0h", "4\u00a0h", "6\u00a0h"]);
});

test("a group's bandwidth is compared with its own best, and its skew is in ms", () => {
  const busbw = [...Array(19).fill(100), 400, null, 50];
  const group = { name: "AllReduce 134 MB, 4 ranks", calls: 900, transfer_s: 1, busbw_gbs: busbw, low_gbs: busbw, wait_ms: busbw.map((value) => (value === 50 ? 3 : null)) };
  // The one bin of 400 is no measure.
  assert.equal(bestOf(group), 100);
  assert.deepEqual(excessOf(group, "busbw").slice(18), [0, 0, null, 0.5]);
  assert.deepEqual(excessOf(group, "skew").slice(20), [null, 3]);
  const edges_s = Array.from({ length: 23 }, (_, i) => 3600 * i);
  assert.equal(saidOf(group, edges_s, 21), "AllReduce 134 MB, 4 ranks, 21.0\u00a0h after the start to 22.0\u00a0h after the start: 50.0\u00a0GB/s busbw, 50\u00a0% below its best, slowest twentieth 50.0\u00a0GB/s; arrival skew 3.0\u00a0ms");
  assert.match(saidOf(group, edges_s, 0), /100\.0\u00a0GB\/s busbw, slowest twentieth .*; not all ranks recorded$/);
  assert.match(saidOf(group, edges_s, 20), /: no calls$/);
  assert.deepEqual(collectiveTable({ edges_s, groups: [group] }).rows[21], [group.name, "21.0\u00a0h after the start", 50, 50, 3]);
});

test("columns are drawn together where their edges are equally far apart", () => {
  assert.deepEqual(evenStretches([0, 2, 4, 6, 8], 0, 4), [[0, 4]]);
  // A restart makes one column wide.
  assert.deepEqual(evenStretches([0, 2, 4, 44, 46, 48], 0, 5), [[0, 2], [2, 3], [3, 5]]);
  assert.deepEqual(evenStretches([0, 2, 4, 44, 46, 48], 3, 5), [[3, 5]]);
  const edges = Array.from({ length: 513 }, (_, i) => 2 * i + 0.4 * Math.sin(i));
  assert.deepEqual(evenStretches(edges, 0, 512), [[0, 512]]);
});
