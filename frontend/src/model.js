// What the page derives from what the server sends. The types of that are in schema.d.ts, made from Python.

import { remainder } from "./format.js";
import { OWNERS } from "./step_parts.js";

/** @typedef {Finding["severity"]} Severity */

const A = "A".charCodeAt(0);

/**
 * @typedef {object} Progress
 * @property {number} done files
 * @property {number} total files
 * @property {string} file the one read last
 * @property {number | null} elapsed_s since its reading began
 */

/**
 * @typedef {object} RunEntry
 * @property {string} name
 * @property {"queued" | "reading" | "ready" | "failed"} state
 * @property {Progress} progress
 * @property {string | null} error
 * @property {number} arriving files that are still being written, and left out
 * @property {number} deleted files that were read and are gone since
 * @property {number | null} modified_s when the newest file was written, s since the epoch; null where that is unknown
 * @property {number | null} world_size
 * @property {number | null} ranks
 * @property {number | null} incomplete files of which a part or all is not in the diagnosis
 * @property {number | null} steps
 * @property {number | null} step_ms
 * @property {string | null} verdict
 * @property {string | null} headline
 * @property {Severity | null} severity
 * @property {number | null} lost_ms what fixing all findings from minor on saves
 * @property {number | null} unexplained_ms
 * @property {"dumps" | "memory"} [kind] of Flight Recorder dumps, of snapshots of memory; absent of traces
 * @property {string[]} [traces] names of the runs of traces of the same job, of dumps
 */

/**
 * @typedef {object} Listing
 * @property {"scanning" | "ready"} state
 * @property {string | null} error
 * @property {string} logdir
 * @property {string[]} left_out what below it was not looked into, a sentence each
 * @property {RunEntry[]} runs
 */

/** @typedef {import("../schema.js").Account} Account */
/** @typedef {import("../schema.js").AccountLine} AccountLine */
/** @typedef {import("../schema.js").RunAnswer} Report */
/** @typedef {import("../schema.js").Diagnosis} Diagnosis */
/** @typedef {import("../schema.js").Evidence} Evidence */
/** @typedef {import("../schema.js").Finding} Finding */
/** @typedef {import("../schema.js").Lanes} Lanes */
/** @typedef {import("../schema.js").Prospect} Prospect */
/** @typedef {import("../schema.js").Views} Views */
/** @typedef {import("../schema.js").Window} Window */
/** @typedef {import("../schema.js").Measurement} Measurement */
/** @typedef {import("../schema.js").PathPiece} PathPiece */
/** @typedef {import("../schema.js").PathStep} PathStep */

/** @typedef {(number | null)[][]} Grid one row per rank, one column per step; null where a rank lacks the step */

/** Its cost is the account's line of tracing. */
const OF_TRACING = "profiler-overhead";

/** Whether a GPU computes; else the CPU does. @param {Diagnosis} diagnosis */
export const hasGpu = ({ setting }) => setting.device !== "cpu";

/** On how many nodes the ranks are; 0 where that of some rank is not known. @param {Views | null | undefined} views */
export const nodeCount = (views) => (views?.nodes.every(Boolean) ? new Set(views.nodes).size : 0);

/** Whether a job has no training loop: advice on one does not fit it. @param {Pick<Diagnosis, "kind">} diagnosis */
export const trainsNothing = ({ kind }) => ["inference server", "diffusion", "inference", "benchmark"].includes(kind ?? "");

/** What time is called in which nothing computes. @param {boolean} gpu whether a GPU would */
export const idleName = (gpu) => (gpu ? "GPU idle" : "idle");

/**
 * When a nanosecond belongs to an owner or a phase.
 * @param {{when: string, whenOnCpu: string}} part
 * @param {boolean} gpu whether a GPU computes
 */
export const whenOf = ({ when, whenOnCpu }, gpu) => (gpu ? when : whenOnCpu);

/** @type {(owner: string) => [string, string]} */
const entry = (owner) => [owner, ownerName(owner)];

/** What the boxes of a timeline are: owners of GPU work and of blocking calls, and grey ones of the CPU. */
export const BOXES = new Map(/** @type {[string, string][]} */ ([
  ...["compute", "copy"].map(entry),
  ["transfer", "communication without wait"],
  ...["wait", "input", "sync", "alloc", "dispatch", "host"].map(entry),
  ["operator", "operators and launches (CPU)"],
  ["around", "annotations, Python, the profiler's work (CPU)"],
]));

/** @param {string} owner */
export function ownerName(owner) {
  return OWNERS.get(owner)?.name ?? owner;
}

/**
 * The findings that are worth a fix; those of severity info only inform.
 * @param {Diagnosis} diagnosis
 */
export function faults(diagnosis) {
  return diagnosis.findings.filter((finding) => finding.severity !== "info");
}

/**
 * Why there are no numbers per rank and step, "" if there are.
 * @param {Pick<Report, "views">} report
 */
export const lacksViews = ({ views }) => (views ? "" : "Time per rank and step is not available for this run.");

/**
 * The findings of severity info: those that a fix would save something of, and those that cost nothing.
 * @param {Diagnosis} diagnosis
 */
export function belowFaults({ findings }) {
  const rest = findings.filter(({ severity }) => severity === "info");
  const costs = (/** @type {Finding} */ { cost_ms, alone_ms }) => cost_ms > 0 || alone_ms > 0;
  return { small: rest.filter(costs), observations: rest.filter((finding) => !costs(finding)) };
}

/**
 * The run to open where the address names none: the most severe one, then that which loses most, then the newest; before
 * any is read, the first.
 * @param {RunEntry[]} runs
 * @returns {RunEntry | undefined}
 */
export function worstRun(runs) {
  const ready = runs.filter(({ state }) => state === "ready");
  if (!ready.length) return runs[0];
  return ready.sort((a, b) => weightOf(b) - weightOf(a) || lossOf(b) - lossOf(a) || newerFirst(a, b))[0];
}

/** @param {RunEntry} a @param {RunEntry} b */
export const newerFirst = (a, b) => (b.modified_s ?? -1) - (a.modified_s ?? -1);

/**
 * What a run loses a step, ms: by its findings, or with no explanation where that is the verdict.
 * @param {RunEntry} run
 */
export const lossOf = ({ verdict, lost_ms, unexplained_ms }) => (verdict === "unexplained" ? unexplained_ms : lost_ms) ?? 0;

/** @param {RunEntry} run */
function weightOf(run) {
  const { verdict, severity } = run;
  if (verdict === "unknown" || verdict === "healthy" || verdict === "late") return 0;
  return ["info", "minor", "major", "critical"].indexOf(severity ?? "info");
}

/**
 * What the listed evidence of a finding is a part of: how many there are of what, and their sum if that is known; null
 * where no measurement counts them.
 * @param {Finding} finding
 */
export function evidenceSum({ measurements }) {
  for (const { name, value, unit, count } of measurements) {
    if (count !== null && unit === "ms") return { name, count, ms: value };
    if (unit === "1") return { name, count: value, ms: null };
  }
  return null;
}

/**
 * The number of a finding, as `ddp-doctor slice --finding` takes it.
 * @param {Diagnosis} diagnosis
 * @param {string | null} id
 */
export const numberOf = ({ findings }, id) => findings.findIndex((finding) => finding.id === id) + 1;

/**
 * The checks that found no fault: an opportunity is none.
 * @template {{status: string}} Outcome
 * @param {Outcome[]} outcomes
 */
export const passed = (outcomes) => outcomes.filter(({ status }) => status === "clear" || status === "opportunity");

/**
 * The letter of an opportunity; "" if it is none.
 * @param {Diagnosis} diagnosis
 * @param {string | null} id
 */
export function letterOf({ opportunities }, id) {
  const index = opportunities.findIndex((one) => one.id === id);
  return index < 0 ? "" : String.fromCharCode(A + index);
}

/**
 * What the fix of a finding removes, ms on its ranks and steps, in the order of its measurements.
 * @param {Finding} finding
 */
export const removedBy = ({ measurements }) =>
  measurements.flatMap(({ name, value, ranks, steps, owner }) => (owner ? [{ owner, name, ms: value, ranks, steps }] : []));

/**
 * The owner of most of what the fix of a finding removes, whose colour the finding has; "" if unknown.
 * @param {Finding} finding
 */
export function ownerOf(finding) {
  const removed = removedBy(finding);
  return removed.length ? removed.reduce((a, b) => (b.ms > a.ms ? b : a)).owner : "";
}

/**
 * What fixes save that pay only together: the finding's own, then those of the others on top of it, ms; nothing where its
 * own fix saves what it costs.
 * @param {Diagnosis} diagnosis
 * @param {Finding} finding
 * @returns {{numbers: number[], name: string, from: number, ms: number}[]}
 */
export function stairs(diagnosis, { id, rule, alone_ms, together }) {
  if (!together) return [];
  const numbers = together.findings.map((other) => numberOf(diagnosis, other)).filter((number) => number > 0);
  const rules = together.findings.map((other) => other.split(":")[0]);
  return [
    { numbers: [numberOf(diagnosis, id)], name: rule, from: 0, ms: alone_ms },
    { numbers, name: [...new Set(rules)].join(", "), from: alone_ms, ms: together.saved_ms - alone_ms },
  ];
}

/**
 * The address of one piece of a finding's evidence, counted from 1.
 * @param {Finding} finding
 * @param {number} item index of the evidence
 */
export const evidenceId = ({ id }, item) => `${id}.${item + 1}`;

/**
 * A line of the account. The floor takes what rounding leaves, so that the lines are seen to sum to the step.
 * @param {Diagnosis} diagnosis
 * @param {"floor" | "tracing" | "unexplained"} kind
 * @returns {AccountLine}
 */
export function line({ account: { lines }, step_ms }, kind) {
  const found = /** @type {AccountLine} */ (lines.find((one) => one.kind === kind));
  if (kind !== "floor") return found;
  return { ...found, ms: remainder(step_ms, lines.filter((one) => one !== found).map(({ ms }) => ms)) };
}

/**
 * The lines of the account that go with the fixes of all findings that are worth one, and those that stay.
 * @param {Diagnosis} diagnosis
 */
export function account(diagnosis) {
  const fixed = new Set(faults(diagnosis).map(({ id }) => id));
  const goes = (/** @type {AccountLine} */ { kind, finding }) =>
    kind === "finding" ? fixed.has(finding ?? "") : kind === "tracing" && fixed.has(OF_TRACING);
  const { lines } = diagnosis.account;
  return { saved: lines.filter(goes), kept: lines.filter((one) => !goes(one)) };
}

/**
 * What the fixes save, ms per step.
 * @param {Diagnosis} diagnosis
 */
export const lostMs = (diagnosis) => account(diagnosis).saved.reduce((sum, { ms }) => sum + ms, 0);

/**
 * The part of it that one of several steps shows, ms per step: how often it comes is not known.
 * @param {Diagnosis} diagnosis
 */
export function lostOnceMs(diagnosis) {
  if (diagnosis.steps.length < 2) return 0;
  const once = new Set(faults(diagnosis).flatMap(({ id, steps }) => (steps.length === 1 ? [id] : [])));
  return account(diagnosis).saved.reduce((sum, { finding, ms }) => sum + (once.has(finding ?? "") ? ms : 0), 0);
}

/**
 * The ranks that a fault names, or where most of what nothing explains lies; a fault of all ranks names none.
 * @param {Diagnosis} diagnosis
 * @returns {Set<number>}
 */
export function affectedRanks(diagnosis) {
  /** @type {{ranks: number[]}[]} */
  const named = faults(diagnosis).filter((finding) => finding.ranks.length < diagnosis.ranks.length);
  const { unexplained } = diagnosis.account;
  if (diagnosis.verdict === "unexplained" && unexplained && unexplained.ranks.length < diagnosis.ranks.length) named.push(unexplained);
  return new Set(named.flatMap(({ ranks }) => ranks));
}

/**
 * Mean of what is there.
 * @param {(number | null)[]} row
 */
export function mean(row) {
  let [sum, present] = [0, 0];
  for (const value of row) {
    if (value === null) continue;
    sum += value;
    present += 1;
  }
  return present ? sum / present : 0;
}

/**
 * At most `limit` row numbers, in order: the affected first, then those with the largest value.
 * @param {number[]} values one per row
 * @param {(row: number) => boolean} affected
 * @param {number} limit
 */
export function largest(values, affected, limit) {
  const rows = values.map((_, row) => row);
  rows.sort((a, b) => Number(affected(b)) - Number(affected(a)) || values[b] - values[a]);
  return rows.slice(0, limit).sort((a, b) => a - b);
}
