// The first screen where there are many runs: which job to look at first. Stuck jobs stand on top, then what is lost decides,
// whatever folder a run is in.

import { breakable, card, h, prose } from "../dom.js";
import { clockTime, count, ms } from "../format.js";
import { dot, outcome } from "./look.js";
import { worstFirst } from "./order.js";

/** @typedef {import("../model.js").RunEntry} RunEntry */

/** From so many runs on. */
export const MANY_RUNS = 12;
/** Rows; the list at the left has all. */
const MOST = 100;

/**
 * @param {RunEntry[]} runs
 * @param {(name: string) => void} select
 */
export function triage(runs, select) {
  const ordered = worstFirst(runs);
  const read = runs.filter(({ state }) => state === "ready" || state === "failed").length;
  const left = ordered.length - MOST;
  return h(
    "div",
    { class: "triage" },
    h("h1", {}, `${count(runs.length, "run")}${sum(runs)}`),
    read < runs.length ? h("p", { class: "note", role: "status" }, `${read} of ${runs.length} are read; the order may still change.`) : null,
    card(
      "Which to open first",
      h("p", { class: "note" }, "Stuck jobs, then by the share of the step that fixes would save, over all folders."),
      h("ol", { class: "plain" }, ordered.slice(0, MOST).map((run) => row(run, select))),
      left > 0 ? h("p", { class: "note" }, `${count(left, "more run")} in the list at the side.`) : null,
    ),
  );
}

/**
 * ", 2 stuck, 14 with a fault".
 * @param {RunEntry[]} runs
 */
function sum(runs) {
  const stuck = runs.filter(({ verdict }) => verdict === "stuck").length;
  const faulty = runs.filter((run) => run.verdict !== "stuck" && run.severity && run.severity !== "info").length;
  return [stuck && `, ${stuck} stuck`, faulty && `, ${faulty} with a fault`].filter(Boolean).join("");
}

/**
 * @param {RunEntry} run
 * @param {(name: string) => void} select
 */
function row(run, select) {
  const open = h("button", { type: "button", class: "open", click: () => select(run.name) }, breakable(run.name));
  const beside = [run.ranks && count(run.ranks, "rank"), run.step_ms && `${ms(run.step_ms)} a step`, run.modified_s && clockTime(run.modified_s)];
  return h("li", {}, dot(run), h("div", {}, open, h("p", {}, prose(run.headline ?? run.error ?? "Not read yet.")), h("small", {}, beside.filter(Boolean).join(" · "))), outcome(run));
}
