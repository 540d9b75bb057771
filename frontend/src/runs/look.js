// How a run looks wherever runs are listed: its verdict as a shape, and in a word or number.

import { h } from "../dom.js";
import { count, percent } from "../format.js";

/** @typedef {import("../model.js").RunEntry} RunEntry */

/** @type {Record<string, string>} */
const SAID = { failed: "could not be read", pending: "not read yet", info: "unknown" };

/**
 * The verdict as a shape: square critical, triangle major, its tip down minor, disc healthy, ring unknown, diamond
 * unexplained.
 * @param {RunEntry} run
 */
export function dot(run) {
  const shownAs = level(run);
  const unexplained = run.state === "ready" && run.verdict === "unexplained";
  return h("i", { class: `dot ${shownAs}${unexplained ? " unexplained" : ""}`, role: "img", "aria-label": unexplained ? "unexplained" : (SAID[shownAs] ?? shownAs) });
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
export function outcome(run) {
  if (run.state !== "ready") return h("small", {}, run.state === "reading" ? "…" : "");
  if (run.verdict === "stuck") return h("b", { title: "Stuck: ranks wait in collectives for ranks that do not come" }, "stuck");
  if (run.verdict === "out-of-memory") return h("b", { title: "A request for GPU memory failed" }, "out of memory");
  if (run.kind === "memory") return h("small", { title: "Snapshots of memory without traces: nothing to judge" }, "memory");
  if (run.kind) return h("small", {}, run.verdict ?? "");
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

/**
 * How many ranks and steps a run has, or how far it is read.
 * @param {RunEntry} run
 */
export function size(run) {
  if (run.state !== "ready") {
    const { done, total } = run.progress;
    const queued = run.arriving ? `${count(run.arriving, "file")} still being written` : "queued";
    return { queued, failed: "could not be read", reading: total ? `${done} of ${total} files` : "opening" }[
      run.state
    ];
  }
  const left = run.arriving ? `, ${count(run.arriving, "file")} still being written` : "";
  const gone = run.deleted ? `, ${count(run.deleted, "file")} deleted since` : "";
  if (run.kind === "memory") return count(run.ranks ?? 0, "snapshot");
  const what = run.kind === "dumps" ? "dumps" : count(run.steps ?? 0, "step");
  const of = run.world_size !== null && (run.ranks ?? 0) < run.world_size ? `${(run.ranks ?? 0).toLocaleString("en")} of ${count(run.world_size, "rank")}` : count(run.ranks ?? 0, "rank");
  return `${of}, ${what}${left}${gone}`;
}
