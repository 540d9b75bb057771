// What the page says while there is no diagnosis to show: searching, reading, nothing found, failed.

import { copyable, h } from "./dom.js";

/** @typedef {import("./model.js").RunEntry} RunEntry */

export function searching() {
  return h("div", { class: "state", role: "status" }, h("h1", {}, "Searching for traces"), bar());
}

/**
 * A run that is not ready. Call the returned `update` with each new entry.
 * @param {RunEntry} entry
 */
export function reading(entry) {
  const note = h("p", { class: "why" });
  const file = h("p", { class: "note" });
  const track = bar();
  const element = h(
    "div",
    { class: "state", role: "status" },
    h("h1", {}, `${entry.state === "queued" ? "Waiting to read" : "Reading"} ${entry.name}`),
    track,
    note,
    file,
  );
  /** @param {RunEntry} now */
  function update({ state, arriving, progress }) {
    if (progress.total) {
      track.max = progress.total;
      track.value = progress.done;
    }
    const waits = arriving ? "Its files are still being written." : "Another run is being read; this one is next.";
    note.textContent = state === "queued" ? waits : howFar(progress);
    file.textContent = progress.file ? `Last read: ${progress.file}` : "";
  }
  update(entry);
  return { element, update };
}

/**
 * How many files are read, and about how long the others will take: as long as those did.
 * @param {import("./model.js").Progress} progress
 */
export function howFar({ done, total, elapsed_s }) {
  if (!total) return "Opening the files.";
  const said = `${done} of ${total} rank files read`;
  if (done === total) return `${said}. Matching collectives between ranks.`;
  if (!done || elapsed_s === null) return `${said}.`;
  const left = (elapsed_s / done) * (total - done);
  return `${said} in ${seconds(elapsed_s)}; about ${seconds(left)} to go.`;
}

/** @param {number} value */
const seconds = (value) => (value < 90 ? `${Math.max(1, Math.round(value))}\u00a0s` : `${Math.round(value / 60)}\u00a0min`);

/** A progress bar that moves to and fro until it is told how far. */
const bar = () => /** @type {HTMLProgressElement} */ (h("progress", { "aria-label": "Progress" }));

/**
 * @param {string} title
 * @param {string} sentence
 */
export function failed(title, sentence) {
  return h(
    "div",
    { class: "state", role: "alert" },
    h("h1", { class: "major" }, title),
    h("p", { class: "why" }, sentence),
  );
}

/**
 * A link led to a run that is not there.
 * @param {string} run
 * @param {number} others
 */
export const gone = (run, others) => failed(`There is no run ${run} here.`, `It may have been deleted or renamed, or it is in another log directory. ${others === 1 ? "The one that is here stands" : `The ${others} that are here stand`} in the list of runs.`);

/** @param {string} logdir */
export function empty(logdir) {
  // Under --logdir_spec there are several directories; the example then leaves the name open.
  const folder = logdir && !logdir.includes(",") ? logdir.replace(/\/$/, "") : "LOGDIR";
  return h(
    "div",
    { class: "state" },
    h("h1", {}, "No profiler traces here yet."),
    h(
      "p",
      { class: "why" },
      logdir ? h("code", {}, logdir) : "The log directory",
      " has no ",
      h("code", {}, "*.pt.trace.json"),
      " files, plain or gzipped. Record a few steps on every rank of the job, all into one directory:",
    ),
    copyable(example(`${folder}/my_run`)),
    h("p", { class: "why" }, "New traces appear on this page within 30 seconds."),
  );
}

/** @param {string} folder */
const example = (folder) => `from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

with profile(
    activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
    schedule=schedule(wait=5, warmup=2, active=3, repeat=1),
    on_trace_ready=tensorboard_trace_handler(${JSON.stringify(folder)}, use_gzip=True),
    record_shapes=True,
) as profiler:
    for batch in loader:
        train_step(batch)
        profiler.step()
`;
