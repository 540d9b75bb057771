import assert from "node:assert/strict";
import { test } from "node:test";

import { account, affectedRanks, belowFaults, evidenceId, evidenceSum, lostMs, lostOnceMs, stairs, worstRun } from "../src/model.js";

const finding = (id, severity, cost_ms, ranks = [1]) => ({ id, rule: id.split(":")[0], severity, cost_ms, alone_ms: cost_ms, ranks });
const line = (kind, ms, of = null) => ({ kind, finding: of, total_ns: 0, ms, share: ms / 100 });
const diagnosis = (changes = {}) => ({
  verdict: "straggler",
  step_ms: 100,
  ranks: [0, 1, 2],
  missing_ranks: [],
  incomplete: [],
  findings: [finding("straggler:1", "critical", 30), finding("straggler:2", "major", 12), finding("host-sync", "info", 2)],
  account: {
    lines: [
      line("floor", 45),
      line("tracing", 5),
      line("finding", 30, "straggler:1"),
      line("finding", 12, "straggler:2"),
      line("finding", 2, "host-sync"),
      line("unexplained", 6),
    ],
    unexplained: { owner: "host", phase: null, ranks: [2], steps: [3] },
  },
  ...changes,
});

test("the fixes save the lines of findings that are worth one; the rest stays", () => {
  const { kept, saved } = account(diagnosis());
  assert.deepEqual(saved.map(({ finding: of }) => of), ["straggler:1", "straggler:2"]);
  assert.equal(lostMs(diagnosis()), 42);
  assert.equal(kept.reduce((sum, { ms }) => sum + ms, 0), 58);
});

test("fixes that pay only together are stairs, from the own fix to all of them", () => {
  const job = diagnosis();
  const first = { ...job.findings[0], alone_ms: 4, together: { findings: ["straggler:2"], saved_ms: 41, sentence: "" } };
  assert.deepEqual(stairs(job, first), [
    { numbers: [1], name: "straggler", from: 0, ms: 4 },
    { numbers: [2], name: "straggler", from: 4, ms: 37 },
  ]);
  assert.deepEqual(stairs(job, { ...first, together: null }), []);
});

test("what one of several steps shows is not lost in every step", () => {
  const seen = (...steps) => diagnosis({ steps: [1, 2, 3], findings: steps.map((some, i) => ({ ...finding(`straggler:${i + 1}`, "major", 9), steps: some })) });
  assert.equal(lostOnceMs(seen([1, 2, 3], [1, 2])), 0);
  assert.equal(lostOnceMs(seen([1, 2, 3], [2])), 12);
  assert.equal(lostOnceMs(seen([3], [2])), 42);
  assert.equal(lostOnceMs({ ...seen([2], [2]), steps: [2] }), 0, "of one recorded step nothing else is known");
});

test("what tracing takes goes only where it is worth a fix", () => {
  const traced = diagnosis();
  traced.findings.push(finding("profiler-overhead", "minor", 5));
  assert.equal(lostMs(traced), 47);
});

test("ranks with most of what nothing explains are named where that is the verdict", () => {
  assert.deepEqual([...affectedRanks(diagnosis())], [1]);
  assert.deepEqual([...affectedRanks(diagnosis({ verdict: "unexplained", findings: [] }))], [2]);
});

test("evidence is named by its finding's id", () => {
  assert.equal(evidenceId(finding("straggler:2", "major", 12), 0), "straggler:2.1");
});

test("the worst run opens: by severity, then by what it loses, then the newest", () => {
  const run = (name, severity, lost_ms, more = {}) => ({ name, state: "ready", verdict: "x", severity, lost_ms, step_ms: 100, ...more });
  const worst = (...runs) => worstRun(runs)?.name;
  assert.equal(worst(run("a", "minor", 9), run("b", "critical", 30), run("c", "critical", 40)), "c");
  assert.equal(worst(run("a", null, 0, { verdict: "healthy" }), run("b", "major", 0, { verdict: "unexplained", unexplained_ms: 15 }), run("c", "minor", 20)), "b");
  assert.equal(worst(run("a", null, 0, { verdict: "healthy", modified_s: 1 }), run("b", null, 0, { verdict: "healthy", modified_s: 2 })), "b");
  assert.equal(worst({ name: "a", state: "queued" }, run("b", null, 0, { verdict: "healthy" })), "b");
  assert.equal(worst({ name: "a", state: "reading" }, { name: "b", state: "queued" }), "a");
  assert.equal(worst(), undefined);
});

test("below the faults, findings that cost nothing are observations", () => {
  const findings = [
    { id: "a", severity: "minor", cost_ms: 5, alone_ms: 5 },
    { id: "b", severity: "info", cost_ms: 0, alone_ms: 1 },
    { id: "c", severity: "info", cost_ms: 0, alone_ms: 0 },
  ];
  const { small, observations } = belowFaults({ findings });
  assert.deepEqual([small.map(({ id }) => id), observations.map(({ id }) => id)], [["b"], ["c"]]);
});

test("evidence has the sum that a measurement counts, or its count alone", () => {
  const taken = { name: "gaps", value: 108.9, unit: "ms", count: 212 };
  assert.deepEqual(evidenceSum({ measurements: [{ name: "step now", value: 1, unit: "ms", count: null }, taken] }), { name: "gaps", count: 212, ms: 108.9 });
  assert.deepEqual(evidenceSum({ measurements: [{ name: "stalls", value: 30, unit: "1", count: null }] }), { name: "stalls", count: 30, ms: null });
  assert.equal(evidenceSum({ measurements: [] }), null);
});
