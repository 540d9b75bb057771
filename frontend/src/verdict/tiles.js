// The few numbers at stake, each with what it rests on and a "?" that defines it. What is unknown says so.

import { card, h } from "../dom.js";
import { count, decimals, ms, percent } from "../format.js";
import { faults, line, lostMs, lostOnceMs } from "../model.js";
import { tip } from "../tips.js";

/** @typedef {import("../model.js").Diagnosis} Diagnosis */
/** @typedef {import("../views.js").Shown} Shown */
/** @typedef {{name: string, term: string, value: string, basis: string}} Fact */

/** Rates below this have digits. */
const FEW = 100;

/**
 * @param {Shown} shown
 * @returns {Fact[]}
 */
export function facts({ diagnosis, views }) {
  const { step_ms: step, world_size, verdict, ranks, steps } = diagnosis;
  const lost = lostMs(diagnosis);
  const unseen = world_size - ranks.length;
  const recorded = `${ranks.length} of ${count(world_size, "rank")} recorded`;
  const now = { name: "Step now", term: "step time", value: ms(step), basis: `mean of ${count(steps.length, "step")}${unseen ? `, ${recorded}` : ""}` };
  const seen = { name: "Ranks seen", term: "rank, world size", value: `${ranks.length} of ${world_size}`, basis: "ranks with a readable trace" };
  if (verdict === "unknown") return [now, seen];
  const left = step - lost;
  const faster = left > 0 ? `, ${decimals(step / left, step / left < 1.95 ? 2 : 1)}× as fast` : "";
  const fixed = { name: "Step with the fixes", term: "step with the fixes", value: ms(left), basis: lost ? `predicted, ${percent(lost / step)} less${faster}` : "nothing to fix" };
  const { ms: length, share } = line(diagnosis, "unexplained");
  const unexplained = { name: "Unexplained", term: "unexplained", value: ms(length), basis: `${percent(share)} of the step` };
  return [now, fixed, hours(diagnosis, lost, lostOnceMs(diagnosis), views?.device ? "GPU" : "rank"), unexplained, ...ofUser(diagnosis)];
}

/**
 * The step in the user's units, where the user says what a step does.
 * @param {Diagnosis} diagnosis
 * @returns {Fact[]}
 */
function ofUser({ rates, world_size, step_ms: step, findings, opportunities }) {
  if (!rates) return [];
  const saved = [...findings, ...opportunities].reduce((sum, { cost_ms }) => sum + cost_ms, 0);
  const faster = step > saved ? step / (step - saved) : 1;
  const some = (/** @type {number} */ value, digits = 0) => value.toLocaleString("en", { maximumFractionDigits: value < FEW ? 2 : digits });
  const facts = [];
  for (const [what, rate] of /** @type {[string, number | null][]} */ ([["Tokens", rates.tokens_per_second], ["Samples", rates.samples_per_second]])) {
    if (rate !== null) facts.push({ name: `${what}/s per GPU`, term: `${what.toLowerCase()}/s per GPU`, value: some(rate), basis: saved > 0 ? `${some(rate * faster)} with all findings and opportunities` : `with ${count(world_size, "rank")}` });
  }
  const { money_per_day: money, energy_kwh_per_day: energy, workload } = rates;
  const currency = rates.currency ? ` ${rates.currency}` : "";
  if (money !== null) facts.push({ name: "Money a day", term: "money a day", value: some(money) + currency, basis: `${count(world_size, "GPU")} at ${workload.gpu_hour} an hour${saved > 0 ? `; ${some((money * saved) / step)} of it by findings and opportunities` : ""}` });
  if (energy !== null) facts.push({ name: "Energy a day", term: "energy a day", value: `up to ${some(energy)} kWh`, basis: `${count(world_size, "GPU")} at the highest power that was seen${saved > 0 ? `; ${some((energy * saved) / step)} of it by findings and opportunities` : ""}` });
  if (rates.mfu !== null) facts.push({ name: "MFU", term: "MFU", value: percent(rates.mfu), basis: `by your FLOPs${rates.counted_mfu === null ? "" : `; ${percent(rates.counted_mfu)} by those of the trace`}` });
  return facts;
}

/**
 * What the findings cost the whole job in a day: not from few of its ranks, and no loss only where all were recorded.
 * What one of several steps shows is left out, and nothing is said of a day where one step was recorded: nobody knows how
 * often it comes.
 * @param {Diagnosis} diagnosis
 * @param {number} lost ms
 * @param {number} once Of it in faults that one step shows, ms.
 * @param {string} processor
 * @returns {Fact}
 */
function hours({ step_ms: step, world_size, ranks, steps }, lost, once, processor) {
  const fact = { name: `${processor === "GPU" ? "GPU" : "Rank"}-hours lost a day`, term: "GPU-hours lost a day" };
  const all = ranks.length === world_size;
  const most = ranks.length > 1 && 2 * ranks.length >= world_size && lost > 0;
  if (!all && !most) return { ...fact, value: "unknown", basis: `${ranks.length} of ${count(world_size, "rank")} recorded` };
  if (steps.length === 1 && lost > 0) return { ...fact, value: "unknown", basis: "one step recorded: what others lose is not known" };
  const often = `seen once in ${count(steps.length, "step")}: how often is not known`;
  if (once > 0 && once >= lost) return { ...fact, value: "unknown", basis: often };
  const value = step > 0 ? (world_size * 24 * (lost - once)) / step : 0;
  const without = once > 0 ? `, without what was ${often}` : "";
  return { ...fact, value: value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 }), basis: `of ${(world_size * 24).toLocaleString("en")}, with ${count(world_size, processor)}${without}` };
}

/** @param {Shown} shown */
export const tiles = (shown) => drawn(facts(shown));

/** @param {Fact[]} some */
const drawn = (some) =>
  h(
    "dl",
    { class: "tiles" },
    some.map(({ name, term, value, basis }) => h("div", { "data-quantity": term }, h("dt", {}, `${name} `, tip(term, name)), h("dd", {}, h("b", { class: value === "unknown" ? "unknown" : null }, value), h("small", {}, basis)))),
  );

/**
 * What a step without findings could still give back, in sum, though no rule sees a fault in it.
 * @param {Shown} shown
 */
export function headroom({ diagnosis }) {
  const { verdict, ranks, world_size, budget_ms, step_ms: step } = diagnosis;
  if (faults(diagnosis).length || verdict === "unknown" || !(step > 0)) return null;
  const mean = (/** @type {string} */ owner) => Object.values(budget_ms).reduce((sum, budget) => sum + (budget[owner] ?? 0), 0) / Math.max(1, ranks.length);
  const unseen = world_size - ranks.length;
  const fact = (/** @type {string} */ owner, /** @type {string} */ name, /** @type {string} */ term, partial = "") => {
    const value = mean(owner);
    return { name, term, value: partial ? "unknown" : ms(value), basis: partial || `${percent(value / step)} of the step, mean over ranks` };
  };
  const missing = unseen ? `${ranks.length} of ${count(world_size, "rank")} recorded: when the others arrive is not known` : "";
  return card(
    "Headroom that is left",
    drawn([fact("transfer", "Exposed communication", "exposed communication", missing), fact("wait", "Straggler wait", "straggler wait", missing)]),
    h("p", { class: "note" }, "Part of the floor: no rule finds a fault in it. Overlap, a faster network or more even ranks can reduce it."),
  );
}
