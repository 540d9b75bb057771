// The plugin's routes. Addresses are relative to this module, so that --path_prefix needs no care. A report, the tab in
// one file (`tb_ddp_doctor/report/html.py`), holds the answers itself, by route.

/** @typedef {import("./model.js").Listing} Listing */
/** @typedef {import("./model.js").Report} Report */
/** @typedef {{state: "ready", diagnosis: import("./stuck_model.js").StuckRun, views: null}} DumpsReport */
/** @typedef {{state: "ready", diagnosis: import("../schema.js").MemoryRun, views: null}} MemoryReport */
/** @typedef {{state: "queued" | "reading", progress: import("./model.js").Progress}} Waiting */
/** @typedef {{state: "failed", error: string}} Failed */

/**
 * @param {boolean} [reload] search the log directory again at once
 * @returns {Promise<Listing>}
 */
export const fetchRuns = (reload) => get(reload ? "runs?reload" : "runs");

/**
 * @param {string} name
 * @returns {Promise<Report | DumpsReport | MemoryReport | Waiting | Failed>}
 */
export const fetchRun = (name) => get(`run?run=${encodeURIComponent(name)}`);

/**
 * Have a run read again with what is there of files that are still arriving.
 * @param {string} name
 */
export const askArriving = (name) => get(`run?run=${encodeURIComponent(name)}&arriving`);

/**
 * @param {string} run
 * @param {string[]} ids of the findings that are fixed
 * @returns {Promise<import("./model.js").Prospect>}
 */
export const fetchProspect = (run, ids) =>
  get(`whatif?run=${encodeURIComponent(run)}&without=${encodeURIComponent(ids.toSorted().join(","))}`);

/**
 * The step of a run if something were otherwise; `more` asks for a curve over a field, or which fields have no answer.
 * @param {string} run
 * @param {URLSearchParams} changes
 * @param {Record<string, string>} [more]
 * @returns {Promise<import("../schema.js").PlanAnswer>}
 */
export const fetchPlan = (run, changes, more = {}) => get(`plan?${new URLSearchParams([["run", run], ...changes, ...Object.entries(more)])}`);

/**
 * @param {string} rule
 * @returns {Promise<{summary: string, sections: Record<string, string>}>}
 */
export const fetchRule = (rule) => get(`rule?rule=${encodeURIComponent(rule)}`);

/**
 * What differs between two runs.
 * @param {string} before
 * @param {string} after
 * @returns {Promise<{state: "ready", comparison: import("./compared.js").Comparison} | {state: "reading", run: string, progress: import("./model.js").Progress | null}>}
 */
export const fetchComparison = (before, after) =>
  get(`compare?before=${encodeURIComponent(before)}&after=${encodeURIComponent(after)}`);

/**
 * The numbers behind one of the further views.
 * @param {string} run
 * @param {string} of
 * @returns {Promise<any>}
 */
export const fetchDetail = (run, of) => get(`detail?run=${encodeURIComponent(run)}&of=${of}`);

/** @returns {Promise<{writable: boolean, notes: Record<string, import("./notes.js").Note>}>} */
export const fetchNotes = () => get("notes");

/**
 * Keep a note beside the logs; all notes are answered.
 * @param {import("./notes.js").Note & {key: string}} note
 * @returns {Promise<{notes: Record<string, import("./notes.js").Note>}>}
 */
export const keepNote = (note) => get("notes", undefined, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(note) });

/**
 * The address of a run's report.
 * @param {string} run
 * @param {"html" | "markdown"} format
 */
export const reportAddress = (run, format) => addressOf(`report?run=${encodeURIComponent(run)}&format=${format}`).href;

/**
 * A run's report as Markdown.
 * @param {string} run
 */
export async function fetchMarkdown(run) {
  const response = await ask(reportAddress(run, "markdown"));
  if (!response.ok) throw new Error(`TensorBoard answered ${response.status}. Its log says why.`);
  return response.text();
}

/**
 * The events of some ranks in a window of the common clock.
 * @param {string} run
 * @param {number[]} ranks
 * @param {string} start ns
 * @param {string} end ns
 * @param {AbortSignal} signal that nobody waits for it any more
 * @returns {Promise<import("./timeline/rows.js").Slice>}
 */
export const fetchSlice = (run, ranks, start, end, signal) =>
  get(`slice?run=${encodeURIComponent(run)}&ranks=${ranks.join(",")}&start=${start}&end=${end}&format=columns`, signal);

/**
 * The owners of the time of some ranks in a window of the common clock.
 * @param {string} run
 * @param {number[]} ranks
 * @param {string} start ns
 * @param {string} end ns
 * @param {AbortSignal} signal that nobody waits for it any more
 * @returns {Promise<import("./timeline/rows.js").RankLanes>}
 */
export const fetchLanes = (run, ranks, start, end, signal) => get(`lanes?run=${encodeURIComponent(run)}&ranks=${ranks.join(",")}&start=${start}&end=${end}`, signal);

/** @returns {Promise<{perfetto: string | null, frames_perfetto_dev: boolean, torch_tb_profiler: boolean}>} */
export const fetchViewers = () => get("viewers");

/**
 * The plugin's routes lie beside the folder of its modules, which is named for their content.
 * @param {string} route
 */
export const addressOf = (route) => new URL(`../${route}`, import.meta.url);

/**
 * @param {string} run
 * @param {import("./model.js").Window} where
 * @param {"native" | "json" | "columns"} format
 */
export function sliceAddress(run, { ranks, start, end }, format) {
  const query = new URLSearchParams({ run, ranks: ranks.join(","), start, end, format });
  return addressOf(`slice?${query}`).href;
}

/**
 * A slice as a native Perfetto trace.
 * @param {string} run
 * @param {import("./model.js").Window} where
 */
export async function fetchTrace(run, where) {
  const response = await ask(sliceAddress(run, where, "native"));
  if (response.ok) return response.arrayBuffer();
  const body = await response.json().catch(() => null);
  throw new Error(body?.error ?? `TensorBoard answered ${response.status}. Its log says why.`);
}

const embedded = document.getElementById("ddp-doctor-answers");
/** @type {Record<string, any> | null} */
const answers = embedded && JSON.parse(embedded.textContent ?? "");
/** Whether this is a report: one file, with no server behind it. */
export const isReport = answers !== null;

/**
 * @param {string | URL} address
 * @param {AbortSignal} [signal]
 * @param {RequestInit} [how]
 */
async function ask(address, signal, how) {
  try {
    return await fetch(address, { signal, ...how });
  } catch {
    throw new Error("TensorBoard does not answer. Is it still running?");
  }
}

/**
 * @param {string} route
 * @param {AbortSignal} [signal]
 * @param {RequestInit} [how]
 */
async function get(route, signal, how) {
  if (answers) {
    const answer = answers[decodeURIComponent(route)];
    if (!answer) throw new Error("This is not in the report. Open the log directory in TensorBoard to see it.");
    return answer;
  }
  const response = await ask(addressOf(route), signal, how);
  const body = await response.json().catch(() => null);
  if (!response.ok || body === null) {
    throw new Error(body?.error ?? `TensorBoard answered ${response.status}. Its log says why.`);
  }
  return body;
}
