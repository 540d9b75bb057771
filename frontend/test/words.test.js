// What people read is in the field's words: "straggler wait", not "waits for another rank" (docs/glossary.md). The string
// literals of the modules are looked through, all of them: also keys and classes are named in the field's words.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

const SRC = new URL("../src/", import.meta.url);

/**
 * The string literals of a module, templates without their expressions ("…" for each), with the lines they begin at.
 * @param {string} code
 * @returns {{line: number, text: string}[]}
 */
function literals(code) {
  /** @type {{line: number, text: string}[]} */
  const found = [];
  /** Of each template that is open: how deep in braces its expression is. @type {{depth: number, at: number, text: string}[]} */
  const open = [];
  const line = (/** @type {number} */ at) => code.slice(0, at).split("\n").length;
  let at = 0;
  const template = (/** @type {{depth: number, at: number, text: string}} */ literal) => {
    for (; at < code.length; at++) {
      if (code[at] === "\\") literal.text += code.slice(at, ++at + 1);
      else if (code[at] === "`") {
        found.push({ line: line(literal.at), text: literal.text });
        at++;
        return;
      } else if (code.startsWith("${", at)) {
        literal.text += "…";
        open.push(literal);
        at += 2;
        return;
      } else literal.text += code[at];
    }
  };
  while (at < code.length) {
    const rest = code.slice(at, at + 2);
    if (rest === "//") at = (code.indexOf("\n", at) + code.length + 1) % (code.length + 1);
    else if (rest === "/*") at = code.indexOf("*/", at) + 2;
    else if (code[at] === '"' || code[at] === "'") {
      const [literal] = /** @type {RegExpExecArray} */ (/^(["'])(?:\\.|(?!\1).)*\1/s.exec(code.slice(at)));
      found.push({ line: line(at), text: literal.slice(1, -1) });
      at += literal.length;
    } else if (code[at] === "`") {
      at++;
      template({ depth: 0, at, text: "" });
    } else if (/^\/[^ =]/.test(rest)) {
      // A regular expression: a division has spaces around it.
      const [literal] = /** @type {RegExpExecArray} */ (/^\/(?:\\.|\[(?:\\.|[^\]])*\]|[^/\\])+\/\w*/.exec(code.slice(at)));
      at += literal.length;
    } else {
      const inner = open.at(-1);
      if (inner && code[at] === "{") inner.depth++;
      if (inner && code[at] === "}" && inner.depth-- === 0) {
        open.pop();
        inner.depth = 0;
        at++;
        template(inner);
          continue;
      }
      at++;
    }
  }
  return found;
}

/** What is not to be said, and what to say instead. Keys that the server's JSON has are left alone. @type {[RegExp, string][]} */
const WORDS = [
  [/\bown( time|, ms)?\b(?! code|-)/i, "busy time"],
  [/\busual/i, "median rank, comparable"],
  [/\bh[eo]ld(s|ing)? up\b|\bheld\b|\bholds?\b/i, "straggler; blocking interval; reserved"],
  [/\bwaits\b|\bwaiting for (another|other|the others)\b|\bwaits? for (another|the others)/i, "straggler wait"],
  [/\bnothing hides\b|\bmoves\b|\btransfers?,? (that|longest|to)\b/i, "exposed communication; communication without wait"],
  [/\bin no operation\b|\boperations?\b/i, "CPU outside any op; operator"],
  [/\blaunching\b|\bdispatch (time|bound)/i, "launch-bound (CPU overhead)"],
  [/synchroni[sz]ing/i, "sync"],
  [/\bstarve|\brun empty\b|\bhas nothing to do\b/i, "GPU idle"],
  [/\baccused?\b|\bguilty\b|\bculprit/i, "stragglers, affected ranks"],
  [/\bbus\b|\balpha\b(?!\))|\bby the line\b|\bfar\b/i, "busbw, algbw, latency, busbw at large size, outliers"],
  [/\bin use\b/i, "allocated"],
  [/\bself on host\b|\bon (the )?(device|host)\b/i, "Self CPU, Self CUDA"],
  [/^most\b|\bproducts\b/i, "max; GEMMs"],
  [/\bcloser\b|\bfurther\b|\bleft out\b/i, "zoom in, zoom out; N short events hidden, zoom in"],
  [/\bdid not apply\b|\bcould not (look|see)\b|\brules? looked\b|\bcannot tell\b/i, "not checked (lacks data); N of M checks passed"],
  [/\bclocks agree\b/i, "clock skew ±"],
  [/\bbeyond\b|\bby (itself|themselves)\b/i, "on top of other fixes; if fixed alone"],
  [/\btell(s|ing)?\b|\bchance\b|\bstory\b|\bdrawn out\b/i, "significant; noise; explanation; widened"],
  [/\btaken out\b|\bsettle\b|\balike\b|\bmessages\b/i, "what-if change; compute; comparable; point-to-point transfers"],
  [/\d ?us\b|, us\b|\bus\)/, "µs"],
];
const MODULES = readdirSync(SRC, { recursive: true, encoding: "utf8" }).filter((name) => name.endsWith(".js") && name !== "glossary.js");

test("no module says what the glossary says otherwise", () => {
  const found = MODULES.flatMap((name) =>
    literals(readFileSync(new URL(name.replaceAll("\\", "/"), SRC), "utf8")).flatMap(({ line, text }) =>
      WORDS.filter(([not]) => not.test(text)).map(([, but]) => `${name}:${line} "${text}": say ${but}`),
    ),
  );
  assert.deepEqual(found, []);
});

test("literals are found in templates, after regular expressions and not in comments", () => {
  const code = 'a = "one"; // "no"\nb = x / 2 + `two ${f({ k: `three ${"four"}` })} end`; /* "no" */ c = /"no/.test(\'five\');';
  assert.deepEqual(literals(code), [
    { line: 1, text: "one" },
    { line: 2, text: "four" },
    { line: 2, text: "three …" },
    { line: 2, text: "two … end" },
    { line: 2, text: "five" },
  ]);
});
