// Drives a page of Perfetto in a frame or a window: it is asked until it answers, then given the trace and the range.
// Its interface is postMessage: "PING" until "PONG", a buffer, a range in seconds of the trace's own clock.

/** @typedef {{buffer: ArrayBuffer, title: string, seen: [string, string], first: number | null}} Shown seen: start and end in whole ns; first: the rank
 * that stands above the others */
/**
 * @typedef Viewer
 * @property {(message: unknown) => void} say
 * @property {Window | null} page which answers
 * @property {boolean} arranges whether it sorts ranks and selects the evidence (frame.js)
 */

const PING_MS = 25;
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
 * Perfetto's page from elsewhere.
 * @param {Window} page
 * @param {string} origin
 * @returns {Viewer}
 */
export const foreign = (page, origin) => ({
  say: (message) => page.postMessage(message, origin),
  page,
  arranges: false,
});

/**
 * Perfetto's page in a sandbox. It reaches nothing: the files of its own folder are handed to it, and no others.
 * @param {HTMLIFrameElement} frame
 * @param {string} folder address
 * @returns {Promise<Viewer>}
 */
export async function sandboxed(frame, folder) {
  const [port] = (await answer(() => frame.contentWindow, "PORT", PATIENCE_MS)).ports;
  port.onmessage = async ({ data, ports: [reply] }) => reply.postMessage(await file(folder, data.file));
  return { say: (message) => port.postMessage(message), page: frame.contentWindow, arranges: true };
}

/** @type {Map<string, Promise<Blob | null>>} Files that were handed over, by address, for the next slice */
const files = new Map();

/**
 * @param {string} folder
 * @param {unknown} name of a file, and of folders before it: no dots that lead elsewhere
 */
async function file(folder, name) {
  if (typeof name !== "string" || !/^([\w-]+\/)*[\w-]+(\.[\w-]+)+$/.test(name)) return null;
  const address = folder + name;
  if (!files.has(address))
    files.set(
      address,
      fetch(address).then((response) => (response.ok ? response.blob() : null)),
    );
  const found = await files.get(address)?.catch(() => null);
  if (!found) files.delete(address);
  return found ?? null;
}

/**
 * Show a trace. Throws an error, with a sentence, if Perfetto does not answer.
 * @param {Viewer} viewer
 * @param {Shown} shown
 */
export async function show({ say, page, arranges }, { buffer, title, seen, first }) {
  const ping = setInterval(say, PING_MS, "PING");
  await answer(() => page, "PONG", PATIENCE_MS).finally(() => clearInterval(ping));
  say({ perfetto: { buffer, title, keepApiOpen: true } });
  if (arranges) {
    say({ arrange: seen, first });
    await answer(() => page, "ARRANGED", LOADING_MS).catch(() => {});
  }
  const range = { perfetto: { timeStart: seconds(seen[0]), timeEnd: seconds(seen[1]), viewPercentage: SHARE } };
  say(range);
  if (!arranges) setTimeout(say, AGAIN_MS, range);
}

/** @param {string} ns */
const seconds = (ns) => Number(BigInt(ns)) / 1e9;

/**
 * @param {() => Window | null} page which answers
 * @param {string} expected
 * @param {number} within ms
 * @returns {Promise<MessageEvent>}
 */
function answer(page, expected, within) {
  return new Promise((resolve, reject) => {
    const patience = setTimeout(
      () => done(() => reject(new Error("Perfetto does not answer. Download the slice instead."))),
      within,
    );
    const listen = (/** @type {MessageEvent} */ event) => {
      if (event.source === page() && event.data === expected) done(() => resolve(event));
    };
    const done = (/** @type {() => void} */ then) => {
      clearTimeout(patience);
      window.removeEventListener("message", listen);
      then();
    };
    window.addEventListener("message", listen);
  });
}
