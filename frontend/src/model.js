// What the server sends (`tb_ddp_doctor/findings.py`, `view/views.py`), and what the page derives from it.

import { OWNERS } from "./step_parts.js";

/** @typedef {"critical" | "major" | "minor" | "info"} Severity */

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
 * @property {number | null} world_size
 * @property {number | null} ranks
 * @property {number | null} incomplete files of which a part or all is not in the diagnosis
 * @property {number | null} steps
 * @property {number | null} step_ms
 * @property {string | null} verdict
 * @property {Severity | null} severity
 * @property {number | null} lost_ms what fixing all findings from minor on saves
 * @property {number | null} unexplained_ms
 */

/**
 * @typedef {object} Listing
 * @property {"scanning" | "ready"} state
 * @property {string | null} error
 * @property {string} logdir
 * @property {RunEntry[]} runs
 */

/**
 * @typedef {object} Prospect
 * @property {string[]} fixed ids of findings
 * @property {number} step_ms now
 * @property {number} without_ms then
 * @property {[number, number]} range_ms 80 % interval of `without_ms`
 */

/** @typedef {{file: string, line: number, function: string}} Source a function of the user's own, and where it begins */

/** @typedef {{rank: number, step: number, start_ns: number, end_ns: number, what: string, source: Source | null, window?: Window | null}} Evidence the slice that shows it, where its trace is here */

/**
 * @typedef {object} Measurement
 * @property {string} name
 * @property {number} value
 * @property {string} unit "1" for counts
 * @property {number[]} ranks empty where it is of the whole job, as `steps`
 * @property {number[]} steps
 * @property {number | null} count how many things it sums
 */

/**
 * @typedef {object} Finding
 * @property {string} id the rule, and a number after a colon where the rule has several findings
 * @property {string} rule
 * @property {Severity} severity
 * @property {number} cost_ms what its fix saves on top of the fixes charged before it: its line of the account
 * @property {number} alone_ms what it saves if fixed alone
 * @property {[number, number]} range_ms 80 % interval of `cost_ms`
 * @property {number[]} ranks
 * @property {number[]} steps
 * @property {string | null} cause
 * @property {string} confidence
 * @property {string} title
 * @property {string} why
 * @property {string} fix
 * @property {Evidence[]} evidence
 * @property {Measurement[]} measurements
 * @property {{name: string, value: number, unit: string, reason: string}[]} thresholds
 * @property {string[]} [commands] of other tools
 */

/** @typedef {{kind: "floor" | "tracing" | "finding" | "unexplained", finding: string | null, total_ns: number, ms: number, share: number}} AccountLine */

/**
 * The whole step: floor + tracing + findings + unexplained.
 * @typedef {object} Account
 * @property {"replay" | "busy_time"} method
 * @property {number} total_ns
 * @property {AccountLine[]} lines
 * @property {{owner: string, phase: string | null, ranks: number[], steps: number[]} | null} unexplained where it lies
 * @property {{step: number, ms: number, reason: string}[]} left_out
 */

/**
 * @typedef {object} Diagnosis
 * @property {string} name
 * @property {number} world_size
 * @property {number[]} ranks
 * @property {number[]} missing_ranks
 * @property {string[]} incomplete files of which a part or all is not in here
 * @property {number[]} steps
 * @property {number} step_ms
 * @property {string} verdict
 * @property {string} headline
 * @property {Severity | "healthy"} level how the verdict is shown
 * @property {Account} account
 * @property {Record<string, Record<string, number>>} budget_ms
 * @property {Record<string, Record<string, number>>} phases_ms by rank, by phase; empty where the traces do not tell
 * @property {{residual_us: number | null, offset_us: Record<string, number>}} clock
 * @property {Finding[]} findings
 * @property {{rule: string, status: string, reason: string}[]} outcomes
 * @property {{file: string, message: string}[]} warnings
 */

/** @typedef {(number | null)[][]} Grid one row per rank, one column per step; null where a rank lacks the step */

/**
 * @typedef {object} Lanes
 * @property {number} step
 * @property {number} start_ms
 * @property {number} end_ms
 * @property {{rank: number, start_ms: number, pieces: [number, number, number][]}[]} ranks start of its step; pieces:
 *   owner index, start and end in ms
 */

/** @typedef {{ranks: number[], start: string, end: string, seen: [string, string]}} Window ns on the common clock */

/**
 * @typedef {object} Views
 * @property {boolean} from_digests whether the traces themselves are elsewhere
 * @property {number[]} ranks
 * @property {string[]} nodes
 * @property {string} device
 * @property {number[]} steps
 * @property {string[]} owners
 * @property {Record<string, Grid>} budget_ms by owner
 * @property {Grid} step_ms
 * @property {Grid} busy_ms
 * @property {Grid} start_ns start of each step's window, on the rank's own clock
 * @property {Lanes | null} lanes
 * @property {string} origin_ns on the common clock
 * @property {Grid} clock_ms start of each step on the common clock, after the origin
 * @property {string} stacks how to get Python stacks, and after an empty line the code; "" where some trace has them
 */

/** @typedef {{state: "ready", diagnosis: Diagnosis, views: Views | null}} Report */

/** Its cost is the account's line of tracing. */
const OF_TRACING = "profiler-overhead";

/** @type {(owner: string) => [string, string]} */
const entry = (owner) => [owner, ownerName(owner)];

/** What the boxes of a timeline are: owners of GPU work and of blocking calls, and grey ones of the CPU. */
export const BOXES = new Map(/** @type {[string, string][]} */ ([
  ...["compute", "copy"].map(entry),
  ["transfer", "communication without wait"],
  ...["wait", "input", "sync", "alloc"].map(entry),
  ["operator", "operators and launches (CPU)"],
  ["around", "annotations and Python (CPU)"],
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
 * The findings of severity info: those that a fix would save something of, and those that cost nothing.
 * @param {Diagnosis} diagnosis
 */
export function belowFaults({ findings }) {
  const rest = findings.filter(({ severity }) => severity === "info");
  const costs = (/** @type {Finding} */ { cost_ms, alone_ms }) => cost_ms > 0 || alone_ms > 0;
  return { small: rest.filter(costs), observations: rest.filter((finding) => !costs(finding)) };
}

/**
 * The run to open where the address names none: the most severe one, then that which loses most; before any is read,
 * the first.
 * @param {RunEntry[]} runs
 * @returns {RunEntry | undefined}
 */
export function worstRun(runs) {
  const ready = runs.filter(({ state }) => state === "ready");
  if (!ready.length) return runs[0];
  return ready.reduce((worst, run) => (weightOf(run) > weightOf(worst) || (weightOf(run) === weightOf(worst) && lossOf(run) > lossOf(worst)) ? run : worst));
}

/** @param {RunEntry} run */
const lossOf = ({ verdict, lost_ms, unexplained_ms }) => (verdict === "unexplained" ? unexplained_ms : lost_ms) ?? 0;

/** @param {RunEntry} run */
function weightOf(run) {
  const { verdict, severity } = run;
  if (verdict === "unknown" || verdict === "healthy") return 0;
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
 * The address of one piece of a finding's evidence, counted from 1.
 * @param {Finding} finding
 * @param {number} item index of the evidence
 */
export const evidenceId = ({ id }, item) => `${id}.${item + 1}`;

/**
 * A line of the account.
 * @param {Diagnosis} diagnosis
 * @param {"floor" | "tracing" | "unexplained"} kind
 */
export const line = ({ account }, kind) => /** @type {AccountLine} */ (account.lines.find((one) => one.kind === kind));

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
  const present = row.filter((value) => value !== null);
  return present.length ? present.reduce((sum, value) => sum + value, 0) / present.length : 0;
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
