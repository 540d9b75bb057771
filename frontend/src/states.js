// What the page says while there is no diagnosis to show: searching, reading, nothing found, failed.

import { copyable, h } from "./dom.js";
import { folderOf, quoted } from "./findings/advice.js";

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
  const folder = folderOf(logdir) || "LOGDIR";
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
      " files, plain or gzipped. Nothing to record yet? See two jobs with a fault each:",
    ),
    copyable("ddp-doctor demo"),
    h("p", { class: "why" }, "Else record a few steps on every rank, all into one directory, in one of four ways. New traces appear on this page within 30 seconds."),
    WAYS.map(([title, when, code], place) =>
      h("details", { class: "folded", open: place === 0 }, h("summary", {}, title), h("p", { class: "note" }, when), copyable(code(`${folder}/my_run`))),
    ),
  );
}

/**
 * Ways to record: title, when it is the right one, and what to type for a folder.
 * @type {[string, string, (folder: string) => string][]}
 */
const WAYS = [
  [
    "Doctor",
    "In your training loop: captures all ranks at the same steps, again and again, and says the verdict in the job's log.",
    (folder) => `from tb_ddp_doctor.capture import Doctor

doctor = Doctor(${JSON.stringify(folder)}, every=1000, steps=3)  # on every rank
for batch in loader:
    train_step(batch)
    doctor.step()
`,
  ],
  ["torch.profiler", "With what PyTorch has: some steps once.", (folder) => example(folder)],
  [
    "Nsight Systems",
    "Without a change of the code, for C++ too: on each node, then export to SQLite.",
    (folder) => `nsys profile --trace=cuda,nvtx --cuda-graph-trace=node -o ${quoted(`${folder}/node_%h`)} torchrun ... train.py
nsys export --type sqlite --include-json true ${quoted(folder)}/node_*.nsys-rep
`,
  ],
  [
    "Flight Recorder",
    "For a job that hangs: the last collectives of every rank, written when one times out.",
    (folder) => `TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 \\
  TORCH_FR_DUMP_TEMP_FILE=${quoted(`${folder}/nccl_trace_rank_`)} torchrun ... train.py
`,
  ],
];

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
