// The list of runs on the left: name, verdict at a glance, progress while one is read.

import { h } from "./dom.js";
import { count, percent } from "./format.js";

/** @typedef {import("./model.js").RunEntry} RunEntry */

/**
 * @param {RunEntry[]} runs
 * @param {string | null} selected
 * @param {(name: string) => void} select
 */
export function runList(runs, selected, select) {
  if (!runs.length) return h("p", { class: "note" }, "No runs yet.");
  return h(
    "ul",
    {},
    runs.map((run) =>
      h(
        "li",
        {},
        h(
          "button",
          {
            type: "button",
            class: "run",
            title: run.name,
            "aria-current": run.name === selected ? "true" : null,
            click: () => select(run.name),
          },
          h("i", { class: `dot ${level(run)}` }),
          h("span", { class: "name" }, run.name),
          h("small", { class: "size" }, size(run)),
          outcome(run),
        ),
      ),
    ),
  );
}

/** @param {RunEntry} run */
function level(run) {
  if (run.state === "failed") return "failed";
  if (run.state !== "ready") return "pending";
  if (run.verdict === "unknown" || run.verdict === "late") return "info";
  if (run.verdict !== "healthy") return run.severity ?? "info";
  return whole(run) ? "healthy" : "info";
}

/**
 * Whether every rank left a whole trace: without, "no fault" is not "healthy".
 * @param {RunEntry} run
 */
const whole = ({ ranks, world_size, arriving, incomplete }) => ranks === world_size && !arriving && !incomplete;

/** @param {RunEntry} run */
function size(run) {
  if (run.state !== "ready") {
    const { done, total } = run.progress;
    const queued = run.arriving ? `${count(run.arriving, "file")} still being written` : "queued";
    return { queued, failed: "could not be read", reading: total ? `${done} of ${total} files` : "opening" }[
      run.state
    ];
  }
  const left = run.arriving ? `, ${count(run.arriving, "file")} still being written` : "";
  const gone = run.deleted ? `, ${count(run.deleted, "file")} deleted since` : "";
  const what = run.kind === "dumps" ? "dumps" : count(run.steps ?? 0, "step");
  return `${count(run.ranks ?? 0, "rank")}, ${what}${left}${gone}`;
}

/** @param {RunEntry} run */
function outcome(run) {
  if (run.state !== "ready") return h("small", {}, run.state === "reading" ? "…" : "");
  if (run.verdict === "stuck") return h("b", { title: "Stuck: ranks wait in collectives for ranks that do not come" }, "stuck");
  if (run.kind === "dumps") return h("small", {}, run.verdict ?? "");
  if (run.verdict === "unknown") return h("small", { title: "Unknown: the traces lack the data to judge" }, "unknown");
  if (run.verdict === "unexplained" && run.step_ms)
    return h("b", { title: "Unexplained: the share of the step that no rule explains" }, `${percent((run.unexplained_ms ?? 0) / run.step_ms)} ?`);
  if (!run.lost_ms || !run.step_ms) return h("small", {}, whole(run) ? "healthy" : "no fault found");
  return h(
    "b",
    { title: `${run.verdict}: predicted saving of step time with the fixes` },
    `−${percent(run.lost_ms / run.step_ms)}`,
  );
}
