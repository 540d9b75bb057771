import assert from "node:assert/strict";
import { test } from "node:test";

import { howFar } from "../src/states.js";

const said = (done, total, elapsed_s) => howFar({ done, total, file: "", elapsed_s }).replace(/\u00a0/g, " ");

test("how far a reading is, and how long it will take by what it took", () => {
  assert.equal(said(0, 0, 0.1), "Opening the files.");
  assert.equal(said(0, 8, 0.1), "0 of 8 rank files read.");
  assert.equal(said(2, 8, 10), "2 of 8 rank files read in 10 s; about 30 s to go.");
  assert.equal(said(1, 100, 10), "1 of 100 rank files read in 10 s; about 17 min to go.");
  assert.match(said(8, 8, 10), /Matching collectives/);
});
