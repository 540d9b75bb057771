import assert from "node:assert/strict";
import { test } from "node:test";

import { account, evidenceId, guilty, level, lostMs, severityOf } from "../src/model.js";

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

test("what tracing takes goes only where it is worth a fix", () => {
  const traced = diagnosis();
  traced.findings.push(finding("profiler-overhead", "minor", 5));
  assert.equal(lostMs(traced), 47);
});

test("unexplained is as severe as its share, unknown is neutral, healthy is whole", () => {
  assert.equal(level(diagnosis()), "critical");
  assert.equal(level(diagnosis({ verdict: "unexplained" })), "minor");
  assert.equal(level(diagnosis({ verdict: "unknown", findings: [] })), "info");
  assert.equal(level(diagnosis({ verdict: "healthy", findings: [] })), "healthy");
  assert.equal(level(diagnosis({ verdict: "healthy", findings: [], missing_ranks: [3] })), "info");
  assert.deepEqual([0.029, 0.03, 0.1, 0.2].map(severityOf), ["info", "minor", "major", "critical"]);
});

test("ranks with most of what nothing explains are named where that is the verdict", () => {
  assert.deepEqual([...guilty(diagnosis())], [1]);
  assert.deepEqual([...guilty(diagnosis({ verdict: "unexplained", findings: [] }))], [2]);
});

test("evidence is named by its finding's id", () => {
  assert.equal(evidenceId(finding("straggler:2", "major", 12), 0), "straggler:2.1");
});
