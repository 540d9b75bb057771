// Drives a page of Perfetto in a frame or a window: it is asked until it answers, then given the trace and the range.
// Its interface is postMessage: "PING" until "PONG", a buffer, a range in seconds of the trace's own clock.

/** @typedef {{buffer: ArrayBuffer, title: string, seen: [string, string]}} Shown seen: start and end in whole ns */

const PING_MS = 100;
const PATIENCE_MS = 30_000;
/** Perfetto gives up on a range some seconds after it was told; larger traces take longer to load. */
const AGAIN_MS = 3_000;
const LOADING_MS = 20_000;
const SHARE = 0.7;

/** Opens the groups of tracks: closed ones show nothing of what is within. */
const COMMANDS = [{ id: "dev.perfetto.ExpandTracksByRegex", args: ["^(rank |ddp-doctor)"] }];

/**
 * The address within Perfetto's page at which it waits for a trace.
 * @param {string} page
 */
export const waiting = (page) => `${page}#!/viewer?hideSidebar=true&startupCommands=${encodeURIComponent(JSON.stringify(COMMANDS))}`;

/**
 * Show a trace. Throws an error, with a sentence, if Perfetto does not answer.
 * @param {Window} page
 * @param {string} origin where the page comes from
 * @param {Shown} shown
 */
export async function show(page, origin, { buffer, title, seen }) {
  await answered(page, origin);
  page.postMessage({ perfetto: { buffer, title, keepApiOpen: true } }, origin);
  if (origin === location.origin) await arrange(page, seen).catch(() => {});
  const range = { timeStart: seconds(seen[0]), timeEnd: seconds(seen[1]), viewPercentage: SHARE };
  page.postMessage({ perfetto: range }, origin);
  if (origin !== location.origin) setTimeout(() => page.postMessage({ perfetto: range }, origin), AGAIN_MS);
}

/** @param {string} ns */
const seconds = (ns) => Number(BigInt(ns)) / 1e9;

/**
 * @param {Window} page
 * @param {string} origin
 * @returns {Promise<void>}
 */
function answered(page, origin) {
  return new Promise((resolve, reject) => {
    const ping = setInterval(() => page.postMessage("PING", origin), PING_MS);
    const patience = setTimeout(
      () => done(() => reject(new Error("Perfetto does not answer. Download the slice instead."))),
      PATIENCE_MS,
    );
    const listen = (/** @type {MessageEvent} */ event) => {
      if (event.source === page && event.data === "PONG") done(resolve);
    };
    const done = (/** @type {() => void} */ then) => {
      clearInterval(ping);
      clearTimeout(patience);
      window.removeEventListener("message", listen);
      then();
    };
    window.addEventListener("message", listen);
  });
}

/**
 * Once the trace is loaded, sort the ranks, which this Perfetto orders by their number of slices, and select the
 * evidence. This takes what Perfetto leaves open for its developers; where that is different, only this is missing.
 * @param {any} page
 * @param {[string, string]} seen
 */
async function arrange(page, [start, end]) {
  const until = Date.now() + LOADING_MS;
  const loaded = () => page.app?.trace && !page.app.isLoadingTrace;
  while (!loaded() && Date.now() < until) await new Promise((done) => setTimeout(done, PING_MS));
  const { engine, selection, workspaces } = page.app.trace;
  const workspace = workspaces.currentWorkspace;
  const ranks = workspace.children.filter((/** @type {any} */ track) => /^rank \d/.test(track.name));
  ranks.sort((/** @type {any} */ a, /** @type {any} */ b) => number(a.name) - number(b.name));
  for (const track of ranks) workspace.addChildLast(track);
  const duration = BigInt(end) - BigInt(start);
  const found = await engine.query(`select id from slice where ts = ${BigInt(start)} and dur = ${duration} limit 1`);
  const row = found.maybeFirstRow({ id: 0 });
  if (row) selection.selectSqlEvent("slice", row.id);
}

/** @param {string} name "rank 12 (node1) 13" */
const number = (name) => parseInt(name.slice("rank ".length), 10);
