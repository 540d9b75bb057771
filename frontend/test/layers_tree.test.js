import assert from "node:assert/strict";
import { test } from "node:test";

import { bottomUp, boxesWithin, criticalOf, hits, layersOf, topDown, valueOf, widths } from "../src/layers/tree.js";

/** Three layers with an attention and two Linear each, on two ranks; forward and backward of one kernel, and idle time. */
function told() {
  const paths = ["", "net", "net.0", "net.1", "net.2", "net.0.fc_0", "net.0.fc_1", "net.1.fc_2", "net.1.fc_3", "net.2.fc_4", "net.2.fc_5", "head"];
  const parent = [-1, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4, 0];
  const rows = [5, 6, 7, 8, 9, 10, 11].flatMap((module) => [{ module, part: 0, kernel: 2 }, { module, part: 1, kernel: 3 }, { module, part: 5, kernel: 2 }]);
  rows.push({ module: 0, part: 3, kernel: 0 });
  return {
    ranks: [0, 3],
    all_ranks: 2,
    kernels: rows.length,
    parts: ["forward", "backward", "recomputed", "other", "communication", "idle"],
    paths,
    parent,
    module: rows.map(({ module }) => module),
    part: rows.map(({ part }) => part),
    operator: rows.map(({ kernel }) => (kernel ? 1 : 0)),
    kernel: rows.map(({ kernel }) => kernel),
    source: rows.map(() => -1),
    texts: ["", "aten::mm", "void gemm<float>(int)", "gemm_nt"],
    sources: [],
    calls: rows.map(() => 1),
    ms: [rows.map((_, i) => i + 1), rows.map((_, i) => (i % 2 ? i + 3 : i + 1))],
    critical_ms: rows.map((_, i) => i % 4),
    critical_outside_ms: 7,
  };
}

for (const [name, tree] of Object.entries({ "top-down": topDown, "merged": (of) => topDown(of, true), "bottom-up": bottomUp })) {
  test(`every node of the ${name} tree is the sum of what is below it`, () => {
    const nodes = tree(told(), false);
    nodes.forEach((node, i) => {
      const within = nodes.filter(({ parent }) => parent === i);
      if (!within.length) return;
      node.ms.forEach((time, rank) => assert.equal(within.reduce((sum, one) => sum + one.ms[rank], 0), time));
      assert.ok(within.every(({ level }) => level === node.level + 1));
    });
  });
}

test("a node has of the critical path what those below it have, and the whole step what lies in no kernel, too", () => {
  for (const merged of [false, true]) {
    const nodes = topDown(told(), merged);
    nodes.forEach((node, i) => {
      const within = nodes.filter(({ parent }) => parent === i);
      const outside = i ? 0 : 7;
      if (within.length) assert.equal(within.reduce((sum, one) => sum + (criticalOf(told(), one) ?? 0), outside), criticalOf(told(), node));
    });
    assert.equal(criticalOf(told(), nodes[0]), told().critical_ms.reduce((sum, ms) => sum + ms, 7));
  }
  assert.equal(criticalOf({ ...told(), critical_ms: null, critical_outside_ms: null }, topDown(told(), false)[0]), null);
});

test("modules have forward and backward, operators and kernels below them", () => {
  const nodes = topDown(told(), false);
  const at = (/** @type {number} */ i) => (i < 0 ? [] : [...at(nodes[i].parent), nodes[i].name]);
  const i = nodes.findIndex(({ name, path }) => name === "gemm_nt" && path === "net.1.fc_2");
  assert.deepEqual(at(i), ["step", "net", "1", "fc_2", "backward", "aten::mm", "gemm_nt"]);
  assert.equal(nodes[i].said, "gemm_nt in backward of net.1.fc_2");
  assert.deepEqual(nodes.filter(({ level }) => level === 1).map(({ name }) => name), ["net", "head", "outside forward and backward"]);
  assert.equal(nodes.filter(({ said }) => said === "other kernels in outside forward and backward outside of all modules").length, 1);
});

test("merged layers are one, and so are the modules at the same place within them", () => {
  assert.equal(layersOf(told()), 3);
  const nodes = topDown(told(), true);
  assert.deepEqual(nodes.filter(({ kind }) => kind === "module").map(({ said }) => said), ["net", "net.*", "net.*.fc_* (1)", "net.*.fc_* (2)", "head"]);
  const first = nodes.find(({ said }) => said === "net.*.fc_* (1)");
  // Rows 0 to 2, 6 to 8 and 12 to 14 of the first rank.
  assert.equal(first?.ms[0], 6 + 24 + 42);
  assert.equal(nodes[0].ms[0], topDown(told(), false)[0].ms[0]);
});

test("bottom-up, a kernel has its modules below it, and idle time is left out", () => {
  const nodes = bottomUp(told(), false);
  const gemm = nodes.findIndex(({ name }) => name === "aten::mm: gemm");
  assert.deepEqual(nodes.filter(({ parent }) => parent === gemm).map(({ said }) => said).sort().slice(0, 2), ["aten::mm: gemm in head", "aten::mm: gemm in net.0.fc_0"]);
  const idle = told().ms[0].filter((_, row) => told().part[row] === 5).reduce((sum, time) => sum + time, 0);
  assert.equal(nodes[0].ms[0], topDown(told(), false)[0].ms[0] - idle);
});

test("a node's time is the median rank's, a rank's, or the difference of two", () => {
  const ms = Float64Array.from([1, 2, 6]);
  assert.equal(valueOf(ms, { rank: -1, against: null }), 2);
  assert.equal(valueOf(ms, { rank: 2, against: null }), 6);
  assert.equal(valueOf(ms, { rank: 2, against: 0 }), 5);
  assert.equal(valueOf(ms, { rank: 2, against: -1 }), 4.5);
});

test("a box of a difference is as wide as the differences within it, also where these cancel out", () => {
  const nodes = topDown(told(), false);
  const values = nodes.map(({ ms }) => valueOf(ms, { rank: 1, against: 0 }));
  const wide = widths(nodes, (i) => values[i]);
  nodes.forEach((_, i) => {
    assert.ok(wide[i] >= Math.abs(values[i]));
    assert.ok(wide[i] >= nodes.reduce((sum, { parent }, j) => sum + (parent === i ? wide[j] : 0), 0) - 1e-9);
  });
});

test("what is found counts once, the outermost of nodes within each other", () => {
  const nodes = topDown(told(), false);
  assert.deepEqual(hits(nodes, "net.1").map((i) => nodes[i].said), ["net.1"]);
  assert.equal(hits(nodes, "GEMM_NT head").length, 1);
  assert.deepEqual(hits(nodes, " "), []);
});

test("boxes stand within their parents, and what is too narrow is not asked for", () => {
  const nodes = topDown(told(), false);
  const asked = new Set();
  const width = (/** @type {number} */ i) => {
    asked.add(i);
    return nodes[i].ms[0];
  };
  const found = boxesWithin(nodes, 0, width, 0.05);
  const of = new Map(found.map((box) => [box.index, box]));
  for (const { index, depth, from, share } of found.slice(1)) {
    const around = of.get(nodes[index].parent);
    assert.ok(around && around.depth === depth - 1 && from >= around.from && from + share <= around.from + around.share + 1e-9);
    assert.ok(Math.abs(share - nodes[index].ms[0] / nodes[0].ms[0]) < 1e-9 && share >= 0.05);
  }
  assert.ok(asked.size < nodes.length);
  assert.deepEqual(boxesWithin(nodes, found[2].index, width, 0)[0], { index: found[2].index, depth: 0, from: 0, share: 1 });
});
