// What a finding advises: node --test frontend/test

import assert from "node:assert/strict";
import { test } from "node:test";

import { advised, filled, folderOf, needsProcess } from "../src/findings/advice.js";

const FIX = {
  first: "Move it out of the training loop.",
  advice: "Move it out of the training loop. While it trains, on that host:",
  ended: "Move it out of the training loop.",
  code: "py-spy dump --pid 427   # rank 1\ntop -H -p 427",
};
const WORKERS = { first: "Use more workers.", advice: "Use more workers.", ended: "Use more workers.", code: "DataLoader(num_workers=4)" };

test("commands for a process show while it runs, and not after", () => {
  assert.deepEqual(advised(FIX, true), ["Move it out of the training loop. While it trains, on that host:", "py-spy dump --pid 427   # rank 1\ntop -H -p 427"]);
  assert.deepEqual(advised(FIX, false), ["Move it out of the training loop.", ""]);
  assert.deepEqual(advised(WORKERS, false), ["Use more workers.", "DataLoader(num_workers=4)"]);
  assert.equal(needsProcess("nvidia-smi -q -d PERFORMANCE"), false);
});

test("the log directory stands in commands as a shell takes it", () => {
  assert.equal(filled("ddp-doctor capture LOGDIR --steps 3", "/runs/job"), "ddp-doctor capture /runs/job --steps 3");
  assert.equal(filled("ddp-doctor capture LOGDIR", "/it's $1"), "ddp-doctor capture '/it'\\''s $1'");
  assert.equal(filled("ddp-doctor capture LOGDIR", folderOf("a:/one,b:/two")), "ddp-doctor capture LOGDIR");
  assert.deepEqual([folderOf("/runs/"), folderOf("/")], ["/runs", "/"]);
});
