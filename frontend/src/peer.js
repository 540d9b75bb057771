// Leads to torch-tb-profiler's trace view. It has no links to one, but its page is of the same origin: its menus are
// opened and clicked as a user would. Where that fails, the sentence that is returned says what to choose.

const TAB = "pytorch_profiler";
const VIEW = "Trace";
const PATIENCE_MS = 8_000;
const EVERY_MS = 200;

/**
 * @param {string} run
 * @param {string} file name of the rank's trace
 * @returns {Promise<string>} what the user still has to do
 */
export async function openPeer(run, file) {
  const [worker, span] = named(file);
  const choice = `run ${run}, view Trace, worker ${worker}${span ? `, span of ${span}` : ""}`;
  try {
    parent.location.hash = `#${TAB}`;
    const page = await until(peerPage);
    for (const [menu, wanted] of [run, VIEW, worker].entries()) await choose(page, menu, wanted);
    return `torch-tb-profiler shows ${choice}.`;
  } catch {
    return `In the tab PYTORCH_PROFILER choose ${choice}. Its page needs scripts from the internet.`;
  }
}

/**
 * Worker and span, as torch-tb-profiler takes them from a file's name.
 * @param {string} file
 */
export function named(file) {
  const found = /^(.*?)(?:\.(\d+))?\.pt\.trace\.json(?:\.gz)?$/.exec(file);
  return found ? [found[1], found[2] ?? ""] : [file, ""];
}

/** @returns {Document | null} its page, once it has its menus */
function peerPage() {
  for (const frame of parent.document.querySelectorAll("iframe")) {
    const page = frame.contentDocument;
    if (frame.contentWindow !== window && page?.querySelector(".MuiSelect-root")) return page;
  }
  return null;
}

/**
 * @param {Document} page
 * @param {number} index of the menu: run, view, worker, span
 * @param {string} wanted
 */
async function choose(page, index, wanted) {
  // What was chosen before decides what a menu offers, which is asked of the server.
  const option = await until(() => {
    const menu = page.querySelectorAll(".MuiSelect-root")[index];
    if (menu?.textContent?.trim() === wanted) return menu;
    const offered = [...page.querySelectorAll('[role="option"]')];
    if (!offered.length) menu?.dispatchEvent(new MouseEvent("mousedown", { bubbles: true, button: 0 }));
    return offered.find((one) => one.textContent?.trim() === wanted);
  });
  if (option.getAttribute("role") === "option") /** @type {HTMLElement} */ (option).click();
  await until(() => !page.querySelector('[role="option"]'));
}

/**
 * @template T
 * @param {() => T | null | undefined} ask
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
