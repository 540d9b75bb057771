// What the server sends (`tb_ddp_doctor/findings.py`, `view/views.py`), and what the page derives from it.

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

/** @typedef {{rank: number, step: number, start_ns: number, end_ns: number, what: string, source: Source | null}} Evidence */

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

/** @typedef {{rank: number, owner: string, phase: string | null, what: string, start_ms: number, ms: number}} PathPiece */

/** @typedef {{step: number, start_ns: number, end_ns: number, pieces: PathPiece[]}} PathStep its part of the critical path */

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
 * @property {Account} account
 * @property {Record<string, Record<string, number>>} budget_ms
 * @property {Record<string, Record<string, number>>} phases_ms by rank, by phase; empty where the traces do not tell
 * @property {{residual_us: number | null, offset_us: Record<string, number>}} clock
 * @property {Finding[]} findings
 * @property {{rule: string, status: string, reason: string}[]} outcomes
 * @property {{file: string, message: string}[]} warnings
 * @property {PathStep[]} critical_path empty where steps cannot be played again
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
 * @property {Window[][]} windows a slice to open, by finding and evidence
 * @property {string[][]} commands of other tools, by finding
 * @property {string} stacks how to get Python stacks, and after an empty line the code; "" where some trace has them
 */

/** @typedef {{state: "ready", diagnosis: Diagnosis, views: Views | null}} Report */

/** @type {[Severity, number][]} From which share of the step on a cost is so severe (`findings.Severity`). */
const LEAST_SHARES = [
  ["critical", 0.2],
  ["major", 0.1],
  ["minor", 0.03],
];
/** Its cost is the account's line of tracing. */
const OF_TRACING = "profiler-overhead";

/**
 * @typedef {object} Owner
 * @property {string} name
 * @property {string} when a nanosecond belongs to it
 * @property {string} light its colour in the light theme
 * @property {string} dark
 * @property {"on-owner" | "on-light"} ink of numbers on it
 */

/**
 * The owners of a step's nanoseconds in order of precedence, as docs/glossary.md has them. Their colours mean the same
 * everywhere on the page, and stay apart for the colour-blind: test/colours.test.js measures it.
 * @type {Map<string, Owner>}
 */
export const OWNERS = new Map([
  ["compute", { name: "compute", when: "a kernel runs that is not communication", light: "#21489c", dark: "#4d7de8", ink: "on-owner" }],
  ["copy", { name: "copy", when: "only copies or memsets run", light: "#4f6b0c", dark: "#c5e0c2", ink: "on-owner" }],
  ["wait", { name: "straggler wait", when: "only communication runs, and some rank has not arrived", light: "#e6731f", dark: "#e9a346", ink: "on-light" }],
  ["transfer", { name: "exposed communication", when: "only communication runs, and all ranks have arrived", light: "#008080", dark: "#58c3a2", ink: "on-owner" }],
  ["input", { name: "input", when: "GPU idle, CPU in the DataLoader's __next__", light: "#8058e2", dark: "#8895c4", ink: "on-owner" }],
  ["sync", { name: "sync", when: "GPU idle, CPU in cuda*Synchronize, .item() or another blocking call", light: "#831567", dark: "#d8abf6", ink: "on-owner" }],
  ["alloc", { name: "allocation", when: "GPU idle, CPU in cudaMalloc or cudaFree", light: "#52361c", dark: "#be8403", ink: "on-owner" }],
  ["dispatch", { name: "launch-bound (CPU overhead)", when: "GPU idle, CPU in an operator or a launch", light: "#d2bf1a", dark: "#f5d660", ink: "on-light" }],
  ["host", { name: "CPU outside any op", when: "GPU idle, CPU outside any op (Python, I/O, GC)", light: "#d42e59", dark: "#d85278", ink: "on-owner" }],
]);

/** The phases of the training loop, in its order; each has the colour of an owner. */
export const PHASES = new Map([
  ["loading", { name: "loading", when: "waiting for a batch, or copying it to the GPU", colour: "input" }],
  ["forward", { name: "forward", when: "forward, and the GPU work it launched", colour: "compute" }],
  ["backward", { name: "backward", when: "backward, and the GPU work it launched, with the collectives of gradients", colour: "transfer" }],
  ["optimizer", { name: "optimizer", when: "the optimizer's step, and the GPU work it launched", colour: "dispatch" }],
  ["other", { name: "other", when: "outside forward/backward/optimizer, in the training loop", colour: "alloc" }],
]);

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
 * The findings that are worth a fix; those below 3 % of the step only inform.
 * @param {Diagnosis} diagnosis
 */
export function faults(diagnosis) {
  return diagnosis.findings.filter((finding) => finding.severity !== "info");
}

/**
 * The findings below 3 % of the step: those that a fix would save something of, and those that cost nothing.
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

/**
 * What a run loses a step, ms: by its findings, or with no explanation where that is the verdict.
 * @param {RunEntry} run
 */
export const lossOf = ({ verdict, lost_ms, unexplained_ms }) => (verdict === "unexplained" ? unexplained_ms : lost_ms) ?? 0;

/** @param {RunEntry} run */
function weightOf(run) {
  const { verdict, step_ms } = run;
  if (verdict === "unknown" || verdict === "healthy") return 0;
  const severity = (verdict !== "unexplained" && run.severity) || severityOf(step_ms ? lossOf(run) / step_ms : 0);
  return ["info", "minor", "major", "critical"].indexOf(severity);
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

/** What a fix removes, by the name of its measurement (`rules/support/savings.py`), and the owner that has it. */
export const REMOVED = new Map([
  ["CPU time that the fix removes: cudaMalloc and cudaFree", "alloc"],
  ["CPU time that the fix removes: blocking copies", "sync"],
  ["CPU time that the fix removes: synchronisation", "sync"],
  ["CPU time that the fix removes: DataLoader", "input"],
  ["CPU time that the fix removes: outside any op", "host"],
  ["CPU time that the fix removes: stalls inside ops", "dispatch"],
  ["CPU time that the fix removes: the profiler's stalls", "dispatch"],
  ["CPU time that the fix removes: recording of events", "dispatch"],
  ["CPU time that the fix removes: ops, launches and Python between them", "dispatch"],
  ["GPU work that the fix removes", "compute"],
  ["exposed communication that the fix removes", "transfer"],
]);

/**
 * What the fix of a finding removes, ms on its ranks and steps, in the order of its measurements.
 * @param {Finding} finding
 */
export const removedBy = ({ measurements }) =>
  measurements.flatMap(({ name, value, ranks, steps }) => {
    const owner = REMOVED.get(name);
    return owner ? [{ owner, name, ms: value, ranks, steps }] : [];
  });

/**
 * The owner of most of what the fix of a finding removes, whose colour the finding has; "" if unknown.
 * @param {Finding} finding
 */
export function ownerOf(finding) {
  const removed = removedBy(finding);
  return removed.length ? removed.reduce((a, b) => (b.ms > a.ms ? b : a)).owner : "";
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
 * How severe a cost is that is this share of the step (0 to 1).
 * @param {number} share
 * @returns {Severity}
 */
export const severityOf = (share) => LEAST_SHARES.find(([, least]) => share >= least)?.[0] ?? "info";

/**
 * How the verdict is shown: a severity, "healthy", or "info" where the traces cannot tell, or not all of the job was
 * seen: no data is not healthy.
 * @param {Diagnosis} diagnosis
 * @returns {Severity | "healthy"}
 */
export function level(diagnosis) {
  if (diagnosis.verdict === "unknown") return "info";
  if (diagnosis.verdict === "unexplained") return severityOf(line(diagnosis, "unexplained").share);
  const [worst] = faults(diagnosis);
  if (worst) return worst.severity;
  return diagnosis.missing_ranks.length || diagnosis.incomplete.length ? "info" : "healthy";
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
