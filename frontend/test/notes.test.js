import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.document ??= { getElementById: () => null };
const { keyOf, tagsOf } = await import("../src/notes.js");

test("a note belongs to what a finding says", () => {
  assert.equal(keyOf({ rule: "straggler", cause: "host", ranks: [1, 2, 3, 9] }), "straggler host 1,2,3,9");
  assert.ok(keyOf({ rule: "x", cause: null, ranks: Array.from({ length: 900 }, (_, i) => 3 * i) }).length <= 300);
});

test("what was marked as fixed and is found in another run has come back", () => {
  const note = { comment: "GC", pinned: true, fixed_in: "monday" };
  assert.deepEqual(tagsOf(note, "monday").map(([kind]) => kind), ["fixed", "pinned", "comment"]);
  assert.deepEqual(tagsOf(note, "tuesday")[0], ["back", "back: was marked as fixed in monday"]);
  assert.deepEqual(tagsOf({ comment: "", pinned: false, fixed_in: "" }, "monday"), []);
});
