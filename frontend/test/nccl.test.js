import assert from "node:assert/strict";
import { test } from "node:test";

import { chosen } from "../src/nccl.js";

const choice = (kind, bytes, algorithm, times, channels = 2) => ({ kind, bytes, algorithm, protocol: "LL128", channels, times });
const network = (...choices) => ({ channels: 16, choices });

test("the choice of the size is said, with its channels", () => {
  const seen = network(choice("all_reduce", 4096, "tree", 1), choice("all_reduce", 1 << 20, "ring", 99));
  assert.equal(chosen(seen, { kind: "all_reduce", mean_bytes: 4096 }), "tree, LL128, 2 of 16 channels");
});

test("of other sizes the choice that moved most", () => {
  const seen = network(choice("all_reduce", 4096, "tree", 9), choice("all_reduce", 1 << 20, "ring", 5, 0));
  assert.equal(chosen(seen, { kind: "all_reduce", mean_bytes: 77 }), "ring, LL128");
});

test("without a log nothing", () => {
  assert.equal(chosen(null, { kind: "all_reduce", mean_bytes: 1 }), null);
  assert.equal(chosen(network(), { kind: "all_reduce", mean_bytes: 1 }), null);
});
