// A job of which there are snapshots of memory and no traces: what held memory, what a failed request lacked, and how the
// ranks differ. The page of such a run, as shell.js is of one of traces.

import { card, copyable, h, prose } from "./dom.js";
import { count } from "./format.js";
import { nameOf, size, snapshot } from "./memory/contents.js";
import { MEMORY } from "./step_parts.js";
import { table } from "./table.js";

/** @typedef {import("../schema.js").MemoryRun} MemoryRun */

/** Ranks that have a column each, and snapshots that are shown; the JSON has all. */
const MOST = 16;

/** @param {MemoryRun} run */
export function memoryReport(run) {
  const shown = run.snapshots.slice(0, MOST);
  const left = run.snapshots.length - shown.length;
  const element = h(
    "div",
    { class: "report stuck" },
    h(
      "header",
      { class: "verdict" },
      h("p", { class: "facts", title: run.name }, h("b", {}, run.name), h("span", {}, ` · ${count(run.snapshots.length, "snapshot")} of torch.cuda.memory, no traces`)),
      h("h1", { class: run.findings.length ? "critical" : "info" }, run.headline),
    ),
    run.findings.map(fault),
    ranks(run),
    card(
      "What is allocated",
      shown.map(snapshot),
      left > 0 && h("p", { class: "note" }, `${count(left, "more snapshot")}: ddp-doctor diagnose LOGDIR --json has all.`),
    ),
    run.warnings.length
      ? card(
          "Warnings",
          h("ul", { class: "plain" }, run.warnings.map(({ file, message }) => h("li", { class: "warning" }, h("b", { class: "file", title: file }, file.split("/").pop() ?? file), prose(message)))),
        )
      : null,
  );
  return { element, show: () => {}, close: () => {} };
}

/** @param {import("../schema.js").MemoryFinding} finding */
function fault(finding) {
  const { advice, code } = finding.fix_parts;
  return h(
    "section",
    { class: `card fault ${finding.severity}` },
    h(
      "div",
      { class: "columns" },
      h("div", {}, h("h2", {}, "What was seen"), h("p", {}, prose(finding.why))),
      h("div", {}, h("h2", {}, "What to do"), h("p", {}, prose(advice)), code ? copyable(code) : null),
    ),
  );
}

/**
 * The ranks side by side; null for one alone.
 * @param {MemoryRun} run
 */
function ranks({ snapshots, said }) {
  const ranked = snapshots.filter(({ rank }) => rank !== null).slice(0, MOST);
  if (ranked.length < 2) return null;
  const seen = [...MEMORY.keys()].filter((id) => ranked.some(({ categories }) => categories[id] > 0));
  return card(
    "Ranks",
    said.map((sentence) => h("p", { class: "note" }, prose(sentence))),
    table(
      ["rank", "allocated", ...seen.map(nameOf), "reserved but unallocated"],
      ranked.map((one) => [`rank ${one.rank}`, size(one.allocated), ...seen.map((id) => size(one.categories[id])), size(one.reserved_but_unallocated)]),
      "Ranks",
    ),
  );
}
