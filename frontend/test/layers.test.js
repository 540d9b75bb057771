import assert from "node:assert/strict";
import { test } from "node:test";

import { begun, boxes, layersOf, nameOf, parents, shortPath } from "../src/layers/model.js";

const row = (path, level, step_ms) => ({ path, level, step_ms });
const ROWS = [row("", 0, 10), row("net", 1, 8), row("net.b.0", 2, 3), row("net.b.0.mlp", 3, 2), row("net.b.1", 2, 3), row("net.b.2", 2, 2), row("loss", 1, 1)];

test("rows within others have them as parents", () => {
  assert.deepEqual(parents(ROWS), [-1, 0, 1, 2, 1, 1, 0]);
});

test("siblings stand side by side within their parent", () => {
  const found = boxes(ROWS, 0);
  assert.deepEqual(found.map(({ index }) => index), [0, 1, 2, 3, 4, 5, 6]);
  assert.deepEqual(found.map(({ depth }) => depth), [0, 1, 2, 3, 2, 2, 1]);
  const at = (i) => [found[i].from, found[i].share].map((x) => Math.round(x * 100) / 100);
  assert.deepEqual(at(1), [0, 0.8]);
  assert.deepEqual(at(4), [0.3, 0.3]);
  assert.deepEqual(at(6), [0.8, 0.1]);
});

test("a module opened fills the width, and has only what is within it", () => {
  const found = boxes(ROWS, 2);
  assert.deepEqual(found.map(({ index }) => index), [2, 3]);
  assert.equal(found[0].share, 1);
});

test("children whose medians add up to more than their parent stay within it", () => {
  const found = boxes([row("", 0, 4), row("a", 1, 3), row("b", 1, 3)], 0);
  assert.equal(found[1].share + found[2].share, 1);
});

test("layers are the numbered modules side by side with most time", () => {
  assert.deepEqual(layersOf(ROWS).map(({ path }) => path), ["net.b.0", "net.b.1", "net.b.2"]);
  assert.deepEqual(layersOf([row("", 0, 4), row("layer 1", 1, 3), row("layer 2", 1, 1)]), []);
  assert.equal(layersOf([row("", 0, 4), ...[1, 2, 3].map((n) => row(`layer ${n}`, 1, 1))]).length, 3);
});

test("modules of other kinds beside the layers are none of them", () => {
  const net = ["Embedding_0", "Block_0", "Block_1", "Block_2", "Linear_16"].map((name) => row(`Net_0.${name}`, 2, 1));
  assert.deepEqual(layersOf([row("", 0, 9), row("Net_0", 1, 8), ...net]).map(nameOf), ["Block_0", "Block_1", "Block_2"]);
});

test("a name is the last part of its path", () => {
  assert.deepEqual(ROWS.slice(0, 3).map(nameOf), ["step", "net", "0"]);
});

test("what names of layers begin with", () => {
  assert.equal(begun(["EncoderLayer_0", "EncoderLayer_12"]), "EncoderLayer_");
  assert.equal(begun(["0", "1"]), "");
  assert.equal(begun(["EncoderLayer_0", "DecoderLayer_0"]), "");
  assert.equal(begun(["block", "block"]), "");
});

test("a long path is cut to its end", () => {
  assert.equal(shortPath("net.b.0.mlp"), "net.b.0.mlp");
  const deep = `${"module.".repeat(9)}EncoderLayer_3.MLP_3`;
  assert.ok(shortPath(deep).startsWith("…module.") && shortPath(deep).endsWith(".EncoderLayer_3.MLP_3"));
  assert.ok(shortPath(deep).length <= 61);
  assert.equal(shortPath("whole step"), "whole step");
});
