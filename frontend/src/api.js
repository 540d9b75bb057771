// The plugin's routes. Addresses are relative to this module, so that --path_prefix needs no care.

/** @typedef {import("./model.js").Listing} Listing */
/** @typedef {import("./model.js").Report} Report */
/** @typedef {{state: "queued" | "reading", progress: {done: number, total: number}}} Waiting */
/** @typedef {{state: "failed", error: string}} Failed */

/**
 * @param {boolean} [reload] search the log directory again at once
 * @returns {Promise<Listing>}
 */
export const fetchRuns = (reload) => get(reload ? "runs?reload" : "runs");

/**
 * @param {string} name
 * @returns {Promise<Report | Waiting | Failed>}
 */
export const fetchRun = (name) => get(`run?run=${encodeURIComponent(name)}`);

/**
 * @param {string} run
 * @param {string[]} rules whose findings are fixed
 * @returns {Promise<import("./model.js").Prospect>}
 */
export const fetchProspect = (run, rules) =>
  get(`whatif?run=${encodeURIComponent(run)}&without=${encodeURIComponent(rules.join(","))}`);

/**
 * @param {string} rule
 * @returns {Promise<{summary: string, sections: Record<string, string>}>}
 */
export const fetchRule = (rule) => get(`rule?rule=${encodeURIComponent(rule)}`);

/**
 * The numbers behind one of the further views.
 * @param {string} run
 * @param {string} of
 * @returns {Promise<any>}
 */
export const fetchDetail = (run, of) => get(`detail?run=${encodeURIComponent(run)}&of=${of}`);

/**
 * The events of some ranks in a window of the common clock.
 * @param {string} run
 * @param {number[]} ranks
 * @param {string} start ns
 * @param {string} end ns
 * @returns {Promise<import("./timeline/rows.js").Slice>}
 */
export const fetchSlice = (run, ranks, start, end) =>
  get(`slice?run=${encodeURIComponent(run)}&ranks=${ranks.join(",")}&start=${start}&end=${end}&format=columns`);

/** @param {string} route */
async function get(route) {
  let response;
  try {
    response = await fetch(new URL(route, import.meta.url));
  } catch {
    throw new Error("TensorBoard does not answer. Is it still running?");
  }
  const body = await response.json().catch(() => null);
  if (!response.ok || body === null) {
    throw new Error(body?.error ?? `TensorBoard answered ${response.status}. Its log says why.`);
  }
  return body;
}
