// What the server sends of Flight Recorder dumps (`tb_ddp_doctor/stuck/model.py`).

/** @typedef {"absent" | "no-dump" | "incomplete" | "mismatch" | "not-started" | "queued"} Why */

/**
 * @typedef {object} StuckCall
 * @property {string} kind
 * @property {string} group
 * @property {string} description
 * @property {number[]} ranks
 * @property {number} sequence
 * @property {number[][]} input_sizes
 * @property {string[]} dtypes
 * @property {{file: string, line: number, function: string} | null} site
 * @property {number | null} timeout_s
 */

/**
 * @typedef {object} StuckFinding
 * @property {string} id
 * @property {string} cause
 * @property {"critical" | "info"} severity
 * @property {string} confidence
 * @property {number[]} ranks
 * @property {string[]} hosts
 * @property {string} title
 * @property {string} why
 * @property {string} fix
 * @property {import("../schema.js").FixParts} fix_parts
 * @property {StuckCall} call
 * @property {{rank: number, host: string, came: string, enqueued_ns: number | null, last_sign_ns: number | null}[]} states
 * @property {number[]} waiting
 */

/** @typedef {{rank: number, targets: number[], why: Why, what: string, call: string, kind: string, findings: string[]}} RankWait */

/** @typedef {{name: string, description: string, ranks: number[], enqueued: number[], completed: number[], front: number}} GroupProgress */

/**
 * @typedef {object} StuckRun
 * @property {string} name
 * @property {number} world_size
 * @property {number[]} ranks
 * @property {number[]} missing_ranks
 * @property {string[]} hosts
 * @property {"stuck" | "late" | "healthy" | "unknown"} verdict
 * @property {string} headline
 * @property {StuckFinding[]} findings
 * @property {RankWait[]} waits
 * @property {GroupProgress[]} groups
 * @property {string} library
 * @property {{file: string, message: string}[]} warnings
 * @property {string[]} traces
 * @property {"flight_recorder" | "stacks"} recorder what shows where the ranks are
 */

export {};
