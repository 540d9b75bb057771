import assert from "node:assert/strict";
import { test } from "node:test";

import { cell, csv } from "../src/table.js";

test("cells that hold quotes, commas or lines are quoted", () => {
  const text = csv({ heads: ["name", "ms"], rows: [['a "b", c', 1.5], ["line\nbreak", null]] });
  assert.equal(text, 'name,ms\r\n"a ""b"", c",1.5\r\n"line\nbreak",\r\n');
});

test("a name that a spreadsheet would take for a formula is kept from that, a negative number is not", () => {
  assert.equal(csv({ heads: ["k"], rows: [["=HYPERLINK(1)"], [-2]] }), "k\r\n'=HYPERLINK(1)\r\n-2\r\n");
});

test("a formula is found behind spaces, and in the signs of other alphabets", () => {
  const formulas = ["+1", "-1", "@SUM(1)", "\t=1", "\r=1", "\n=1", " =1", "\u00a0=1", "\u200b=1", "\u001b=1", "＝1", "＋1", "－1", "＠1"];
  for (const formula of formulas) {
    const [, cell] = csv({ heads: ["k"], rows: [[formula]] }).split("k\r\n");
    assert.match(cell, /^"?'/, JSON.stringify(formula));
  }
});

test("a name that holds another separator is quoted", () => {
  assert.equal(csv({ heads: ["k"], rows: [["a;=1"]] }), 'k\r\n"a;=1"\r\n');
});

test("numbers are printed with as many digits as they bear", () => {
  assert.deepEqual([cell(null), cell(3), cell(0.1234567), cell(1234.56), cell("x")], ["–", "3", "0.123", "1,234.6", "x"]);
});
