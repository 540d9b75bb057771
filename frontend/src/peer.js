// Leads to torch-tb-profiler's trace view. It has no links to one, but its page is of the same origin: its menus are
// opened and clicked as a user would. Where that fails, or nothing can be drawn there, it comes back to say what to
// choose.

const TAB = "pytorch_profiler";
const VIEW = "Trace";
/** Its page asks every five seconds which runs there are. */
const PATIENCE_MS = 20_000;
const EVERY_MS = 200;
/** So many looks in a row at menus that stay as they were chosen. */
const LOOKS = 4;

/** @typedef {{run: string, worker: string, span: string, spans: number, base_ns: string}} Place as its menus have them */
/** @typedef {{start_ns: number, end_ns: number}} Range on the rank's own clock */

/**
 * @param {Place} place
 * @param {Range | undefined} range to mark
 * @returns {Promise<string>} what is chosen, or what the user has to choose
 */
export async function openPeer({ run, worker, span, spans, base_ns }, range) {
  const choice = `run ${run}, view ${VIEW}, worker ${worker}${spans > 1 ? `, span ${span}` : ""}`;
  const here = parent.location.hash;
  let why = "";
  parent.location.hash = `#${TAB}`;
  try {
    const page = await until(peerPage);
    await choose(page, [run, VIEW, worker, span]);
    const drawing = await drawn(page);
    if (drawing) {
      const marked = range && (await mark(drawing, range, Number(base_ns)));
      return `torch-tb-profiler shows ${choice}${marked ? ", with the evidence marked" : ""}.`;
    }
    why = "Its page draws nothing here, since it does not get its scripts from the internet (gstatic.com, cloudflare.com).";
  } catch {
    why = "Its menus do not offer this yet: it may still be reading the run.";
  }
  parent.location.hash = here;
  return `${why} In the tab PYTORCH_PROFILER choose ${choice}.`;
}

/** @returns {Document | null} its page, once it has its menus */
function peerPage() {
  for (const frame of parent.document.querySelectorAll("iframe")) {
    const page = frame.contentDocument;
    if (frame.contentWindow !== window && page && menus(page).length) return page;
  }
  return null;
}

/**
 * Choose in all menus. What is chosen in one makes the page ask the server what the next ones offer, and when the
 * answer comes it chooses their first: so what it undoes is chosen again, until all stay.
 * @param {Document} page
 * @param {string[]} wanted run, view, worker, span
 */
async function choose(page, wanted) {
  let stayed = 0;
  await until(() => {
    const shown = menus(page).map((menu) => menu.textContent?.trim());
    const other = wanted.findIndex((text, menu) => shown[menu] !== text);
    stayed = other < 0 ? stayed + 1 : 0;
    if (other >= 0) pick(page, other, wanted[other]);
    return stayed >= LOOKS;
  });
}

/**
 * Open a menu, or click what is wanted in the open one. A menu may offer it only later.
 * @param {Document} page
 * @param {number} index
 * @param {string} wanted
 */
function pick(page, index, wanted) {
  const offered = [...page.querySelectorAll('[role="option"]')];
  const option = offered.find((one) => one.textContent?.trim() === wanted);
  if (option) /** @type {HTMLElement} */ (option).click();
  else if (offered.length) page.activeElement?.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
  else menus(page)[index]?.dispatchEvent(new MouseEvent("mousedown", { bubbles: true, button: 0 }));
}

/** @param {Document} page */
const menus = (page) => [...page.querySelectorAll(".MuiSelect-root")];

/**
 * The page within its page that draws the trace; null where the scripts that they load from the internet do not come.
 * @param {Document} page
 */
async function drawn(page) {
  if (!page.defaultView || !("google" in page.defaultView)) return null;
  const loaded = () => {
    const frame = /** @type {HTMLIFrameElement | null} */ (page.querySelector('iframe[src*="trace_embedding"]'));
    const isLoaded = frame?.contentDocument?.readyState === "complete" && frame.contentDocument.URL !== "about:blank";
    return isLoaded && frame.contentWindow;
  };
  const drawing = await until(loaded).catch(() => null);
  return drawing && "WebComponents" in drawing ? drawing : null;
}

/**
 * Mark a range in the trace. Its times are ms from the first event.
 * @param {Window} drawing
 * @param {Range} range
 * @param {number} base ns
 * @returns {Promise<boolean>} whether that went; a large trace may take it too long to read
 */
async function mark(drawing, { start_ns, end_ns }, base) {
  try {
    const viewer = await until(() => {
      const element = /** @type {any} */ (drawing.document.getElementById("trace-viewer"));
      return element?.model?.bounds.isEmpty === false && element.trackView?.viewport && element;
    });
    const [min, max] = [start_ns, end_ns].map((ns) => (ns - base) / 1e6 + viewer.model.timestampShiftToZeroAmount_);
    Object.assign(viewer.trackView.viewport.interestRange, { min, max });
    return true;
  } catch {
    return false;
  }
}

/**
 * @template T
 * @param {() => T | null | undefined | false} ask
 * @returns {Promise<T>}
 */
async function until(ask) {
  const end = Date.now() + PATIENCE_MS;
  while (Date.now() < end) {
    const found = ask();
    if (found) return found;
    await new Promise((done) => setTimeout(done, EVERY_MS));
  }
  throw new Error("it does not come");
}
