// The pure parts of the timeline: node --test frontend/test

import assert from "node:assert/strict";
import { test } from "node:test";

import { eventAt, firstAbove, visible } from "../src/timeline/cull.js";
import { about } from "../src/timeline/about.js";
import { valueAt, valuesAt } from "../src/timeline/curves.js";
import { endings } from "../src/timeline/frame.js";
import { nextGap } from "../src/timeline/gaps.js";
import { legs, onRank, seen } from "../src/timeline/path.js";
import { byKernel, byOwner, medianOf } from "../src/timeline/range.js";
import { folded, ranksOf, toOpen } from "../src/timeline/ranks.js";
import { foundAgain, laidOut, plainName, shortName, waitsUntil, written } from "../src/timeline/rows.js";
import { moved, pinched, ticks, wholeOf, widened, within, zoomed } from "../src/timeline/scale.js";
import { foundModule, search } from "../src/timeline/search.js";
import { stepAt, stepsOf } from "../src/timeline/steps.js";
import { neighbour, toggled } from "../src/timeline/walk.js";

const SEED = 20_251_121;

/** Numbers that are the same in each run. @param {number} seed */
function random(seed) {
  let state = seed;
  return () => (state = (state * 1_103_515_245 + 12_345) % 2 ** 31) / 2 ** 31;
}

/** @param {number} count @param {() => number} next */
function row(count, next) {
  const starts = new Float64Array(count);
  const ends = new Float64Array(count);
  let at = 0;
  for (let i = 0; i < count; i++) {
    starts[i] = at += next() * 3;
    ends[i] = at += next() * (next() < 0.05 ? 400 : 2);
  }
  return { starts, ends };
}

test("the first above a limit is what a walk finds", () => {
  const next = random(SEED);
  for (let n = 0; n < 40; n++) {
    const { ends } = row(n, next);
    const limit = next() * 200;
    const walked = ends.findIndex((end) => end > limit);
    assert.equal(firstAbove(ends, limit), walked < 0 ? n : walked);
  }
});

test("every event that shows is drawn, alone or in its pixel, once and in order", () => {
  const next = random(SEED);
  for (let n = 1; n < 400; n += 13) {
    const { starts, ends } = row(n, next);
    const from = next() * 300;
    const span = { from, to: from + 1 + next() * 900 };
    const drawn = visible(starts, ends, span, 200);
    const counted = drawn.flatMap(({ index, count }) => Array.from({ length: count }, (_, i) => index + i));
    assert.deepEqual(counted, [...new Set(counted)].sort((a, b) => a - b));
    for (let i = 0; i < n; i++) {
      const shows = ends[i] > span.from && starts[i] < span.to;
      if (shows) assert.ok(counted.includes(i), `event ${i} of ${n}`);
    }
    for (const { x, width } of drawn) assert.ok(x >= 0 && x + width <= 200 + 1e-9);
  }
});

test("a row costs its width, not its events", () => {
  const { starts, ends } = row(300_000, random(SEED));
  const drawn = visible(starts, ends, { from: 0, to: ends[ends.length - 1] }, 1_000);
  assert.ok(drawn.length <= 2_000, String(drawn.length));
  assert.equal(drawn.reduce((sum, { count }) => sum + count, 0), 300_000);
});

test("the event under the pointer is found within reach", () => {
  const starts = Float64Array.of(10, 40);
  const ends = Float64Array.of(20, 50);
  assert.deepEqual([5, 9, 15, 21, 30, 39, 45, 55].map((at) => eventAt(starts, ends, at, 2)), [-1, 0, 0, 0, -1, 1, 1, -1]);
});

test("what is under two fingers stays under them", () => {
  const span = { from: 1000, to: 2000 };
  assert.deepEqual(pinched(span, 100, [20, 60], [30, 70]), { from: 900, to: 1900 }, "both move: a pan");
  const closer = pinched(span, 100, [20, 60], [10, 90]);
  assert.equal(closer.to - closer.from, 500, "twice as far apart: half as much shows");
  assert.equal(closer.from + 10 * 5, 1200);
  assert.ok(pinched(span, 100, [50, 50], [50, 50]).to > 1000, "fingers on one point divide by nothing");
});

test("a span stays within the job and wide enough to draw", () => {
  const whole = { from: 0, to: 100 };
  assert.deepEqual(within({ from: -50, to: -10 }, whole), { from: 0, to: 40 });
  assert.deepEqual(within({ from: -50, to: 500 }, whole), whole);
  const narrow = within({ from: 50, to: 50 }, whole);
  assert.ok(narrow.to > narrow.from);
});

test("zooming keeps the instant where it is; moving keeps the width", () => {
  const span = { from: 100, to: 200 };
  const closer = zoomed(span, 130, 0.5);
  assert.equal((130 - closer.from) / (closer.to - closer.from), 0.3);
  assert.deepEqual(moved(span, 0.2), { from: 120, to: 220 });
  assert.deepEqual(widened(span, 0.5), { from: 50, to: 250 });
});

test("ticks are round and lie in the span", () => {
  assert.deepEqual(ticks({ from: -12, to: 41 }, 500, 96), [-0, 20, 40].map((at) => at + 0));
  assert.deepEqual(ticks({ from: 3, to: 10 }, 700, 100), [3, 4, 5, 6, 7, 8, 9, 10]);
});

const HOSTILE = '<img src=x onerror="top.hacked=1">';
const SLICE = {
  start_ns: "1795198710389570917",
  end_ns: "1795198710389670917",
  owners: ["compute", "copy", "communication", "input", "sync", "alloc", "dispatch", "host"],
  collectives: { 7: { kind: "all_reduce", group: "0", bytes: 8, size: 2, last_rank: 1, last_us: 60, transfer_us: 30, bus_factor: 1 } },
  labels: [{ title: "straggler", rank: 1, start_us: 10, end_us: 50, what: "idle" }],
  left_out: "",
  ranks: [0, 1].map((rank) => ({
    rank,
    node: "node0",
    left_out: 0,
    names: ["aten::mm", HOSTILE, "ncclDevKernel_AllReduce"],
    modules: [],
    memory: { time_us: [], allocated: [], reserved: [] },
    gpu: { time_us: [], sm_mhz: [], power_w: [] },
    lanes: [
      lane("main thread 4", "main", [0, 5, 30], [20, 5, 9], [0, 1, 0], [1, 0, 0], [7, 6, 6], [-1, -1, -1], [-1, 11, -1]),
      lane("autograd thread 5", "autograd", [-90], [30], [0], [0], [6], [-1]),
      lane("thread 9", "thread", [1], [2], [0], [0], [6], [-1]),
      lane("GPU 0 stream 16: communication", "stream", [rank ? 60 : 20], [rank ? 30 : 70], [0], [2], [2], [7], [11]),
    ],
  })),
};

/**
 * @param {string} title
 * @param {any} role
 * @param {...number[]} columns
 */
function lane(title, role, ...[start_us, length_us, depth, name, owner, collective, launch = start_us.map(() => -1), module = start_us.map(() => -1)]) {
  return { title, role, start_us, length_us, depth, name, owner, collective, launch, module };
}

test("a slice becomes rows by rank, lane and depth, on the clock of the report", () => {
  const laid = laidOut(SLICE, "1795198710389470917");
  assert.deepEqual([laid.from, laid.to], [100, 200]);
  // The autograd thread has nothing in the window but before it, and other threads are none of training.
  assert.deepEqual(laid.rows.slice(0, 3).map(({ title }) => title), ["CPU", "", "comm."]);
  assert.deepEqual([...laid.rows[0].starts], [100, 130]);
  assert.deepEqual([...laid.rows[1].ends], [110]);
  assert.deepEqual(laid.labels[0], { title: "straggler", rank: 1, what: "idle", from: 110, to: 150 });
  for (let i = 1; i < laid.rows.length; i++) assert.ok(laid.rows[i].top >= laid.rows[i - 1].top + laid.rows[i - 1].height);
});

test("a collective joins its ranks, and the early one waits until the last arrives", () => {
  const { joined, rows } = laidOut(SLICE, SLICE.start_ns);
  const one = joined.get("7");
  assert.deepEqual(one?.arrivals.map(({ rank, at }) => [rank, at]), [[0, 20], [1, 60]]);
  assert.equal(waitsUntil(rows[2], 0, joined), 60);
  assert.equal(waitsUntil(rows[5], 0, joined), 60);
  assert.equal(waitsUntil(rows[0], 0, joined), rows[0].starts[0]);
});

test("an event is found again in a slice that starts elsewhere, and not where it is not", () => {
  const before = laidOut(SLICE, SLICE.start_ns);
  const later = laidOut({ ...SLICE, start_ns: String(BigInt(SLICE.start_ns) - 5_000n) }, SLICE.start_ns);
  before.rows.forEach((row, i) => {
    row.starts.forEach((_, index) => assert.deepEqual(foundAgain(row, index, before.rows), { row: i, index }));
    assert.equal(foundAgain(row, 0, later.rows), null);
    assert.equal(foundAgain(row, 0, before.rows.filter(({ rank }) => rank !== row.rank)), null);
  });
});

test("search finds names anywhere, whatever they hold, in order of time", () => {
  const { rows, joined } = laidOut(SLICE, SLICE.start_ns);
  const hits = search(rows, "MM", joined);
  assert.equal(hits.length, 4);
  const times = hits.map(({ row, first }) => rows[row].starts[first]);
  assert.deepEqual(times, [...times].sort((a, b) => a - b));
  assert.equal(search(rows, "<img", joined).length, 2);
  assert.deepEqual(search(rows, "  ", joined), []);
});

test("a module is found as what follows each other of it in a row, with all within it, and a number as a whole", () => {
  const modules = ["layers.1.attn", "layers.1.mlp", "layers.10.mlp"];
  const none = [-1, -1, -1, -1, -1, -1];
  const stream = lane("GPU 0 stream 7: compute", "stream", [0, 10, 20, 30, 40, 50], [9, 9, 9, 9, 9, 9], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0], none, none, [0, 1, -1, 2, 1, 0]);
  const { rows, joined } = laidOut({ ...SLICE, ranks: [{ ...SLICE.ranks[0], names: ["gemm"], modules, lanes: [stream] }] }, SLICE.start_ns);
  const found = (/** @type {string} */ text) => search(rows, text, joined).map(({ first, last, module }) => [first, last, module]);
  assert.deepEqual(found("layers.1"), [[0, 1, "layers.1"], [4, 5, "layers.1"]]);
  assert.deepEqual(found("MLP"), [[1, 1, "layers.1.mlp"], [3, 3, "layers.10.mlp"], [4, 4, "layers.1.mlp"]]);
  assert.deepEqual(found("gemm").length, 6, "a name is found event by event");
  assert.deepEqual(found("layers.2"), []);
});

test("the module that a text names is cut from a path", () => {
  assert.equal(foundModule("layers.0.mlp", "rs.0"), "layers.0");
  assert.equal(foundModule("layers.0.mlp", "layers"), "layers");
  assert.equal(foundModule("layer 12", "layer 1"), "");
  assert.equal(foundModule("layer 11.layer 1", "layer 1"), "layer 11.layer 1");
});

test("kernels are named without their types", () => {
  assert.equal(shortName("void at::native::(anonymous namespace)::layer_norm_kernel<float, 4>(float*, int)"), "layer_norm_kernel");
  assert.equal(shortName("aten::mm"), "aten::mm");
  assert.equal(shortName(HOSTILE), HOSTILE);
  assert.equal(plainName("void at::native::copy<at::native::x>(int)"), "copy<x>(int)");
});

test("a Python function is named with its file and line", () => {
  assert.equal(shortName("/home/me/train.py(41): step"), "step (train.py:41)");
});

test("what is written on a collective's box is its kind, and search finds it", () => {
  const { rows, joined } = laidOut(SLICE, SLICE.start_ns);
  assert.equal(written(rows[2], 0, joined), "all_reduce");
  assert.equal(search(rows, "all_reduce", joined).length, 2);
});

test("ranks are read as lists, ranges and nodes of those that there are, in their order", () => {
  const all = Array.from({ length: 40 }, (_, i) => i);
  const nodes = all.map((rank) => `node${rank >> 3}`);
  assert.deepEqual(ranksOf("0, 2–4,99", all), [0, 2, 3, 4]);
  assert.deepEqual(ranksOf("5, 2", all), [5, 2]);
  assert.deepEqual(ranksOf("node1, 3", all, nodes), [8, 9, 10, 11, 12, 13, 14, 15, 3]);
  assert.equal(ranksOf("0-39", all)?.length, 16);
  for (const nonsense of ["", undefined, "x", "99", "-"]) assert.equal(ranksOf(nonsense, all.slice(1)), null);
});

const JOB = { ranks: Array.from({ length: 100 }, (_, i) => i), nodes: Array.from({ length: 100 }, (_, i) => `node${i >> 3}`), busy_ms: Array.from({ length: 100 }, (_, i) => [i === 26 ? 90 : 10 + i / 100]) };

test("what matters is opened above a typical rank", () => {
  assert.deepEqual(toOpen(JOB, [26], new Set([26])), [26, 50]);
  assert.deepEqual(toOpen(JOB, [26, 3], new Set([26])), [26, 3, 50]);
});

test("of many ranks a page is folded, first what matters, then the neighbours; all are reached", () => {
  const first = folded(JOB, [26, 50], new Set([26, 99]), 0);
  assert.equal(first.all, 98);
  assert.deepEqual(first.shown.slice(0, 8), [0, 1, 2, 3, 4, 5, 6, 7]);
  for (const rank of [99, 24, 25, 27, 31, 48, 55]) assert.ok(first.shown.includes(rank), String(rank));
  const all = [0, 1, 2, 3, 4].flatMap((page) => folded(JOB, [26, 50], new Set([26, 99]), page).shown);
  assert.deepEqual(all.sort((a, b) => a - b), JOB.ranks.filter((rank) => rank !== 26 && rank !== 50));
});

const LANES = {
  start_ns: SLICE.start_ns,
  end_ns: SLICE.end_ns,
  owners: ["compute", "wait", "host", "dispatch"],
  ranks: [1, 0, 2].map((rank) => ({ rank, node: "node0", owner: [0, 2, 3, 1], start_us: [0, 20, 40, 60], length_us: [20, 20, 10, 40] })),
};

test("an opened rank has a row of what its GPU idles for, a folded one a row of all its time", () => {
  const laid = laidOut(SLICE, SLICE.start_ns, LANES, [1, 0]);
  assert.deepEqual(laid.blocks.map(({ rank, folded: is }) => [rank, is]), [[1, false], [0, false], [2, true]]);
  const idle = laid.rows.filter(({ title }) => title === "GPU idle");
  assert.deepEqual(idle.map(({ rank, starts }) => [rank, [...starts]]), [[1, [20, 40]], [0, [20, 40]]]);
  assert.deepEqual([...laid.rows[laid.rows.length - 1].ends], [20, 40, 50, 100]);
});

test("an opened rank has curves of memory, clock and power below its lanes, where these are known", () => {
  const memory = { time_us: [10, 40], allocated: [1e9, 3e9], reserved: [4e9, 4e9] };
  const gpu = { time_us: [0, 20, 30], sm_mhz: [1980, null, 1410], power_w: [null, null, null] };
  const laid = laidOut({ ...SLICE, ranks: [{ ...SLICE.ranks[0], memory, gpu }, SLICE.ranks[1]] }, SLICE.start_ns, LANES, [0, 1]);
  assert.deepEqual(laid.curves.map(({ rank, title }) => [rank, title]), [[0, "memory"], [0, "SM clock"]]);
  const [used, clock] = laid.curves;
  assert.equal(valueAt(used, 9), "");
  assert.equal(valueAt(used, 39), "1.00\u00a0GB allocated, 4.00\u00a0GB reserved");
  assert.equal(used.range, "max 3.00\u00a0GB allocated, 4.00\u00a0GB reserved");
  assert.equal(valueAt(clock, 25), "1,980\u00a0MHz");
  assert.equal(clock.range, "1,410 – 1,980\u00a0MHz");
  assert.deepEqual(valuesAt(laid.curves, 0, 50).map(([title]) => title), ["memory", "SM clock"]);
  assert.deepEqual(valuesAt(laid.curves, 1, 50), []);
  const [first, second] = laid.blocks;
  assert.ok(used.top >= Math.max(...laid.rows.filter(({ rank }) => rank === 0).map(({ top, height }) => top + height)));
  assert.ok(clock.top + clock.height <= first.top + first.height && first.top + first.height < second.top);
});

test("keys lead from gap to gap, past those too short to see, and stop at the edge", () => {
  const { rows } = laidOut(SLICE, SLICE.start_ns, LANES, [1, 0]);
  const [row] = rows.flatMap(({ rank, title }, i) => (rank === 1 && title === "GPU idle" ? [i] : []));
  assert.deepEqual(nextGap(rows, 1, 0, 1, 1), { row, index: 0 });
  assert.deepEqual(nextGap(rows, 1, 20, 1, 1), { row, index: 1 });
  assert.deepEqual(nextGap(rows, 1, 40, -1, 1), { row, index: 0 });
  assert.equal(nextGap(rows, 1, 20, 1, 15), null);
  assert.equal(nextGap(rows, 1, 20, -1, 1), null);
});

test("a kernel is known with the call that launched it and what that is called by", () => {
  const laid = laidOut(SLICE, SLICE.start_ns, LANES, [1, 0]);
  const row = laid.rows.findIndex(({ rank, paint }) => rank === 0 && paint === "device");
  const { launch, stack } = about(laid, row, 0);
  assert.deepEqual([launch?.name, launch?.start], ["aten::mm", 5]);
  assert.deepEqual(stack.map(({ name }) => name), [HOSTILE]);
  const call = laid.rows.findIndex((one) => one.rank === 0 && one.launch.includes(11) && one.paint === "host");
  assert.equal(about(laid, call, 0).launched?.name, "ncclDevKernel_AllReduce");
});

test("a range sums owners per rank and kernels, cut at its edges", () => {
  const span = { from: 30, to: 70 };
  const owned = byOwner(LANES, 0, span);
  assert.deepEqual(owned[0], { rank: 1, of: { host: 0.01, dispatch: 0.01, wait: 0.01 }, idle: 0.02, gaps: 2 });
  assert.deepEqual(medianOf(owned, LANES.owners), { compute: 0, wait: 0.01, host: 0.01, dispatch: 0.01 });
  const { rows } = laidOut(SLICE, SLICE.start_ns, LANES, [1, 0]);
  const { shown, all } = byKernel(rows, span);
  assert.deepEqual([all, shown[0].calls, shown[0].rank], [1, 2, 0]);
  assert.ok(Math.abs(shown[0].total - 0.05) < 1e-9);
});

test("the critical path goes on through legs too short to see", () => {
  const piece = (/** @type {number} */ rank, /** @type {number} */ start_ms, /** @type {number} */ ms) => ({ rank, owner: "compute", phase: null, what: "", start_ms, ms });
  const all = legs([{ step: 4, start_ns: 1_000_000, end_ns: 21_000_000, pieces: [piece(1, 0, 4), piece(1, 4, 6), piece(0, 10, 1), piece(2, 11, 9)] }], "0");
  assert.deepEqual(all[0], { step: 4, rank: 1, from: 1000, to: 11_000 });
  assert.deepEqual(seen(all, { from: 0, to: 30_000 }, 2000).map(({ rank, from, to }) => [rank, from, to]), [[1, 1000, 12_000], [2, 12_000, 21_000]]);
  assert.equal(onRank(all, 4, 2), 9000);
});

test("the axis begins at the start of the step that shows", () => {
  const views = { ranks: [0, 1], steps: [2, 3], clock_ms: [[0, 10], [1, 11]], step_ms: [[10, 10], [10, 10]] };
  const steps = stepsOf(views, 1);
  assert.equal(stepAt(steps, { from: 12_000, to: 15_000 })?.step, 3);
  assert.equal(stepAt(steps, { from: 5000, to: 12_000 })?.from, 1000);
  assert.equal(stepAt([], { from: 0, to: 1 }), null);
});

test("there is nothing to see beyond the record", () => {
  assert.deepEqual(wholeOf([0, 100]), { from: -2000, to: 102_000 });
});

test("arrow keys lead along a row, and to the same time in the next row with events", () => {
  const rows = [
    { starts: [0, 10], ends: [5, 15] },
    { starts: [], ends: [] },
    { starts: [2, 12], ends: [4, 14] },
  ];
  assert.deepEqual(neighbour(rows, null, "ArrowRight", 6), { row: 0, index: 1 });
  assert.deepEqual(neighbour(rows, { row: 0, index: 0 }, "ArrowRight", 0), { row: 0, index: 1 });
  assert.deepEqual(neighbour(rows, { row: 0, index: 1 }, "ArrowRight", 0), { row: 0, index: 1 });
  assert.deepEqual(neighbour(rows, { row: 0, index: 1 }, "ArrowDown", 0), { row: 2, index: 1 });
  assert.equal(neighbour(rows, { row: 0, index: 0 }, "ArrowUp", 0), null);
});

test("a marker is set in order of time, and removed where one is", () => {
  assert.deepEqual(toggled([5], 2, 1), [2, 5]);
  assert.deepEqual(toggled([2, 5], 4.5, 1), [2]);
});

test("nodes whose names do not fit are called by what differs", () => {
  const called = (/** @type {string[]} */ ...names) => [...endings(names).values()];
  assert.deepEqual(called("node003", "node003", "node012"), ["…003", "…012"]);
  assert.deepEqual(called("gpu-7.east.example", "gpu-12.east.example"), ["…7", "…12"]);
  assert.deepEqual(called("worker1", "worker11"), ["…1", "…11"]);
  assert.deepEqual(called("a100", "h200"), ["a100", "h200"]);
  assert.deepEqual(called("node", "node-b"), []);
  assert.deepEqual(called("alone", "alone"), []);
  assert.deepEqual(called(), []);
});
