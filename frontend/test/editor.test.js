// Which address opens a file in an editor: node --test frontend/test

import assert from "node:assert/strict";
import { test } from "node:test";

import { EDITORS, addressOf } from "../src/findings/editor.js";

const [VSCODE, REMOTE, , PYCHARM] = EDITORS.map(({ template }) => ({ template, folder: "" }));

test("a file here opens at its line, and one of a known folder", () => {
  assert.equal(addressOf(VSCODE, "/work/train.py", 41), "vscode://file/work/train.py:41");
  assert.equal(addressOf({ ...VSCODE, folder: "/home/me/" }, "data/load.py", 3), "vscode://file/home/me/data/load.py:3");
  assert.equal(addressOf(VSCODE, "C:\\job\\train.py", 7), "vscode://file/C:/job/train.py:7");
  assert.equal(addressOf(REMOTE, "/work/train.py", 41, "gpu7"), "vscode://vscode-remote/ssh-remote+gpu7/work/train.py:41");
  assert.equal(addressOf(PYCHARM, "/work/train.py", 41), "pycharm://open?file=/work/train.py&line=41");
});

test("without a folder or an editor there is no link, and no template runs anything", () => {
  assert.equal(addressOf(VSCODE, "train.py", 41), null);
  for (const template of ["", "train.py", "javascript:alert('{file}')", " JavaScript:x", "data:text/html,{file}"]) assert.equal(addressOf({ template, folder: "/a" }, "b.py", 1), null);
});

test("a file's name from a trace is a name and nothing else", () => {
  assert.equal(addressOf(VSCODE, "/a b?x=1&y#z.py", 1), "vscode://file/a%20b%3Fx%3D1%26y%23z.py:1");
});
