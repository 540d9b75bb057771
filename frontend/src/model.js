// What the server sends (`tb_ddp_doctor/findings.py`, `plugin/views.py`), and what the page derives from it.

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
 * @property {number | null} lost_ms
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
 * @property {string[]} fixed rules
 * @property {number} step_ms now
 * @property {number} without_ms then
 * @property {[number, number]} range_ms of single steps
 */

/** @typedef {{file: string, line: number, function: string}} Source a function of the user's own, and where it begins */

/** @typedef {{rank: number, step: number, start_ns: number, end_ns: number, what: string, source: Source | null}} Evidence */

/**
 * @typedef {object} Finding
 * @property {string} rule
 * @property {Severity} severity
 * @property {number} cost_ms what its fix gives back beyond those charged before it
 * @property {number} alone_ms what its fix gives back by itself
 * @property {[number, number]} range_ms the same of single steps, least and most
 * @property {number[]} ranks
 * @property {number[]} steps
 * @property {string | null} cause
 * @property {string} confidence
 * @property {string} title
 * @property {string} why
 * @property {string} fix
 * @property {Evidence[]} evidence
 * @property {{name: string, value: number, unit: string, reason: string}[]} thresholds
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
 * @property {Grid} own_ms
 * @property {Grid} start_ns start of each step's window, on the rank's own clock
 * @property {Lanes | null} lanes
 * @property {string} origin_ns on the common clock
 * @property {Grid} clock_ms start of each step on the common clock, after the origin
 * @property {Window[][]} windows a slice to open, by finding and evidence
 * @property {string[][]} commands of other tools, by finding
 * @property {string} stacks how to get Python stacks, and after an empty line the code; "" where some trace has them
 */

/** @typedef {{state: "ready", diagnosis: Diagnosis, views: Views | null}} Report */

/** The owners in order of precedence: plain name, and when a nanosecond belongs to them. */
export const OWNERS = new Map([
  ["compute", { name: "compute", when: "a kernel that is not communication runs" }],
  ["copy", { name: "memory copies", when: "only copies or memsets run" }],
  ["wait", { name: "waiting for another rank", when: "only communication runs, and some rank has not arrived" }],
  ["transfer", { name: "transfer", when: "only communication runs, and all ranks have arrived" }],
  ["input", { name: "data loading", when: "the device idles while the host waits for the DataLoader" }],
  ["sync", { name: "synchronising", when: "the device idles while the host is in a synchronising call" }],
  ["alloc", { name: "allocating", when: "the device idles while the host allocates or frees device memory" }],
  ["dispatch", { name: "launching", when: "the device idles while the host is inside an operation or a launch" }],
  ["host", { name: "host in no operation", when: "the device idles while the host is in Python, logging or I/O" }],
]);

/** What the training loop is at, in its order: plain name, and when a nanosecond belongs to it. */
export const PHASES = new Map([
  ["loading", { name: "loading", when: "a batch is awaited, or brought to the device" }],
  ["forward", { name: "forward", when: "forward runs, or what it launched" }],
  ["backward", { name: "backward", when: "backward runs, or what it launched, gradients' collectives with it" }],
  ["optimizer", { name: "optimizer", when: "the optimizer steps, or what it launched" }],
  ["other", { name: "other", when: "none of these" }],
]);

/** @param {string} owner */
export const ownerName = (owner) => OWNERS.get(owner)?.name ?? owner;

/**
 * The findings that are worth a fix; those below 3 % of the step only inform.
 * @param {Diagnosis} diagnosis
 */
export function faults(diagnosis) {
  return diagnosis.findings.filter((finding) => finding.severity !== "info");
}

/**
 * A name for each finding that stays the same from one reading of the run to the next: its rule and cause, counted
 * where several have the same.
 * @param {Finding[]} all
 * @returns {Map<Finding, string>}
 */
export function idsOf(all) {
  /** @type {Map<string, number>} */
  const seen = new Map();
  return new Map(
    all.map((finding) => {
      const name = [finding.rule, finding.cause].filter(Boolean).join("-");
      const before = seen.get(name) ?? 0;
      seen.set(name, before + 1);
      return [finding, before ? `${name}-${before + 1}` : name];
    }),
  );
}

/**
 * The same for one piece of its evidence, counted from 1.
 * @param {Map<Finding, string>} ids
 * @param {Finding} finding
 * @param {number} item index of the evidence
 */
export const evidenceId = (ids, finding, item) => `${ids.get(finding)}.${item + 1}`;

/**
 * What the fixes would give back, ms per step.
 * @param {Diagnosis} diagnosis
 */
export function lostMs(diagnosis) {
  return Math.min(
    diagnosis.step_ms,
    faults(diagnosis).reduce((sum, finding) => sum + finding.cost_ms, 0),
  );
}

/**
 * The ranks that a fault names; a fault of all ranks accuses nobody.
 * @param {Diagnosis} diagnosis
 * @returns {Set<number>}
 */
export function guilty(diagnosis) {
  const named = faults(diagnosis).filter((finding) => finding.ranks.length < diagnosis.ranks.length);
  return new Set(named.flatMap((finding) => finding.ranks));
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
 * At most `limit` row numbers, in order: the accused first, then those with the largest value.
 * @param {number[]} values one per row
 * @param {(row: number) => boolean} accused
 * @param {number} limit
 */
export function largest(values, accused, limit) {
  const rows = values.map((_, row) => row);
  rows.sort((a, b) => Number(accused(b)) - Number(accused(a)) || values[b] - values[a]);
  return rows.slice(0, limit).sort((a, b) => a - b);
}
