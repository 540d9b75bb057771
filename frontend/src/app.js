// The page's state: the list of runs as last heard, the run that is open, and its report once it is there.
// It asks for the list each second while something is being read, and rarely otherwise.

import { follow, hashOf, here, write } from "./address.js";
import { fetchRun, fetchRuns } from "./api.js";
import { calibrationOf } from "./calibration.js";
import { h } from "./dom.js";
import { folderOf } from "./findings/advice.js";
import { worstRun } from "./model.js";
import { onReload } from "./reload.js";
import { runList } from "./runs/list.js";
import { MANY_RUNS, triage } from "./runs/triage.js";
import { holdScroll } from "./scroll.js";
import { shell } from "./shell.js";
import { memoryReport } from "./memory_run.js";
import { empty, failed, gone, reading, searching } from "./states.js";
import { links, stuckReport } from "./stuck.js";

/** @typedef {import("./model.js").Listing} Listing */
/** @typedef {import("./model.js").RunEntry} RunEntry */
/** @typedef {import("./address.js").Place} Place */

const BUSY_MS = 1_000;
const QUIET_MS = 30_000;
/** What shows while the first list has not come. */
const UNHEARD = "unheard";

/** @param {HTMLElement} root */
export function start(root) {
  const list = runList(select);
  const trouble = h("p", { class: "trouble", role: "alert" });
  /** What below the log directory was not looked into, and how it is. */
  const limits = h("p", { class: "limits", role: "status" });
  const main = h("main", { tabindex: -1 }, searching());
  const skip = h("button", { type: "button", class: "skip", click: () => main.focus() }, "Skip the list of runs");
  root.replaceChildren(skip, h("nav", { class: "runs", "aria-label": "Runs" }, list.element, trouble, limits), main);

  /** @type {Listing | null} */
  let listing = null;
  let place = here();
  /** The run that opened because it is the worst: it stays once all are read, or somebody does anything here. */
  let settled = "";
  /** @type {{element: HTMLElement, show: (place: Place) => void, close: () => void} | null} the report that shows */
  let report = null;
  /** The run whose report was shown last. */
  let loaded = "";
  /** What the main part shows now; it is rebuilt only when this changes, so focus stays. */
  let shown = "";
  /** The run that is open, "" if none. */
  let opened = "";
  /** @type {((entry: RunEntry) => void) | null} */
  let update = null;
  let timer = 0;

  /** @param {boolean} [reload] */
  async function poll(reload) {
    clearTimeout(timer);
    try {
      listing = await fetchRuns(reload);
      trouble.textContent = listing.runs.length ? (listing.error ?? "") : "";
      limits.textContent = listing.runs.length ? listing.left_out.join(" ") : "";
    } catch (error) {
      trouble.textContent = sentence(error);
      if (!listing) show(UNHEARD, () => failed("The runs could not be listed.", `${sentence(error)} Trying again.`));
    }
    draw();
    const busy =
      !listing ||
      listing.state === "scanning" ||
      listing.runs.some(({ state, arriving }) => state === "queued" || state === "reading" || arriving > 0);
    timer = setTimeout(() => poll(), busy || trouble.textContent ? BUSY_MS : QUIET_MS);
  }

  /**
   * @param {Place} there
   * @param {{step: boolean}} how
   */
  function went(there, how) {
    place = there;
    write(place, how);
  }

  /** @param {string} run "" for the list of many */
  function select(run) {
    went(place.view && run ? { run, view: place.view } : { run }, { step: true });
    draw();
  }

  follow((there) => {
    // Back from another tab: what was opened here stays.
    if (hashOf(there) === hashOf(place)) return;
    place = there;
    draw();
    report?.show(place); // null where another run is being fetched
  });

  function draw() {
    if (!listing) return;
    const { runs } = listing;
    const named = (/** @type {string | undefined} */ wanted) => runs.find(({ name }) => name === wanted);
    const isGone = place.run && !named(place.run) && listing.state !== "scanning";
    const isTriage = !place.run && runs.length >= MANY_RUNS;
    const open = isGone || isTriage ? undefined : (named(place.run) ?? named(settled) ?? worstRun(runs));
    if (open && !runs.some(({ state }) => state === "queued" || state === "reading")) settled = open.name;
    opened = open?.name ?? "";
    list.update(runs, open?.name ?? null);
    if (open) drawRun(open);
    else if (isTriage) show(`triage ${JSON.stringify(runs)}`, () => triage(runs, select));
    else if (isGone && runs.length) show(`gone ${place.run}`, () => gone(place.run, runs.length));
    else if (listing.state === "scanning") {
      if (shown === UNHEARD) show("", searching); // anything else that shows may still hold
    }
    else if (listing.error)
      show(listing.error, () => failed(listing?.left_out.length ? "No profiler traces in the folders that were looked into." : "The log directory could not be read.", listing?.error ?? ""));
    else show("empty", () => empty(listing?.logdir ?? ""));
  }

  /** @param {RunEntry} entry */
  function drawRun(entry) {
    if (entry.state === "ready") {
      if (shown !== JSON.stringify(entry)) load(entry);
    } else if (entry.state === "failed") {
      show(JSON.stringify(entry), () => failed(`${entry.name} could not be read.`, entry.error ?? ""));
    } else {
      const key = `${entry.state} ${entry.name}`;
      if (shown === key) update?.(entry);
      else {
        // Asking for it moves it to the head of the queue.
        if (entry.state === "queued") fetchRun(entry.name).catch(() => {});
        const waiting = reading(entry);
        show(key, () => waiting.element);
        update = waiting.update;
      }
    }
  }

  /** @param {RunEntry} entry */
  async function load(entry) {
    shown = JSON.stringify(entry);
    update = null;
    report?.close();
    report = null;
    try {
      const answer = await fetchRun(entry.name);
      const top = main.scrollTop;
      if (shown !== JSON.stringify(entry)) return; // another run was opened meanwhile
      if (answer.state === "ready") {
        report = ofDumps(answer) ? stuckReport(answer.diagnosis, select) : ofMemory(answer) ? memoryReport(answer.diagnosis) : shell({ ...answer, live: entry.arriving > 0, logdir: folderOf(listing?.logdir ?? "") }, went);
        main.replaceChildren(...dumpsBeside(entry), report.element, ...calibrationOf(entry.name));
        report.show(place);
        // The same run, read again since there is more of it: who reads it stays where they are.
        if (loaded === entry.name) holdScroll(main, top);
        else main.scrollTop = 0;
        loaded = entry.name;
      } else shown = "";
    } catch (error) {
      if (shown === JSON.stringify(entry)) main.replaceChildren(failed(`${entry.name} could not be shown.`, sentence(error)));
    }
  }

  /**
   * The way from a run of traces to the dumps that the same job left.
   * @param {RunEntry} entry
   */
  function dumpsBeside({ name }) {
    const dumps = (listing?.runs ?? []).filter(({ traces }) => traces?.includes(name));
    if (!dumps.length) return [];
    return [h("p", { class: "beside" }, "Flight Recorder dumps of the same job: ", links(dumps.map((run) => run.name), select))];
  }

  /**
   * @param {string} key
   * @param {() => Node} build
   */
  function show(key, build) {
    update = null;
    report?.close();
    report = null;
    if (shown === key) return;
    shown = key;
    main.replaceChildren(build());
  }

  for (const done of ["pointerdown", "keydown", "wheel"]) {
    main.addEventListener(done, () => (settled = opened || settled), { passive: true });
  }
  onReload(() => poll(true));
  poll();
}

/**
 * @param {import("./model.js").Report | import("./api.js").DumpsReport | import("./api.js").MemoryReport} report
 * @returns {report is import("./api.js").MemoryReport}
 */
function ofMemory(report) {
  return "snapshots" in report.diagnosis;
}

/**
 * @param {import("./model.js").Report | import("./api.js").DumpsReport | import("./api.js").MemoryReport} report
 * @returns {report is import("./api.js").DumpsReport}
 */
function ofDumps(report) {
  return "library" in report.diagnosis;
}

/** @param {unknown} error */
const sentence = (error) => (error instanceof Error ? error.message : String(error));
