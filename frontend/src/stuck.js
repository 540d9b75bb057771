// A job that is stuck: what its Flight Recorder dumps say. The sentence, the faults, who waits for whom back to the
// ranks at the root, and how far each rank is in each group. The page of a run of dumps, as shell.js is of one of traces.

import { linkTo } from "./address.js";
import { isReport } from "./api.js";
import { breakable, card, copyable, copying, folded, h, prose } from "./dom.js";
import { count, decimals, ranges } from "./format.js";
import { waitingGraph } from "./stuck_graph.js";
import { table } from "./table.js";

/** @typedef {import("./stuck_model.js").StuckRun} StuckRun */
/** @typedef {import("./stuck_model.js").StuckFinding} StuckFinding */

/**
 * How far a rank is in a group.
 * @typedef {object} Front
 * @property {number} behind collectives that another rank of the group has enqueued, and it has not
 * @property {number} pending those that it has enqueued and not completed
 * @property {boolean} short whether another rank has completed some of these
 * @property {string} title
 */

/** More ranks than this have cells without numbers. */
const NUMBERED = 48;
/** Rows of a table that is for reading. */
const READABLE = 300;
/** How a rank that is waited for is with what others wait in. */
const WAYS = {
  absent: "has not come",
  "no-dump": "left no dump",
  incomplete: "came, does not complete",
  mismatch: "came with something else",
  "not-started": "came, did not start",
  queued: "came, is blocked too",
};

/**
 * @param {StuckRun} run
 * @param {(name: string) => void} select opens another run
 */
export function stuckReport(run, select) {
  const element = h(
    "div",
    { class: "report stuck" },
    h(
      "header",
      { class: "verdict" },
      h("div", { class: "top" }, h("p", { class: "facts", title: run.name }, h("b", {}, run.name), h("span", {}, facts(run))), waysOut(run)),
      h("h1", { class: level(run) }, breakable(run.headline)),
      run.traces.length ? h("p", { class: "beside" }, "Traces of the same job: ", links(run.traces, select)) : null,
    ),
    run.findings.map((finding) => fault(finding)),
    run.waits.length
      ? card(
          "Waiting graph",
          h("p", { class: "note" }, "Ranks at the root are red. An arrow leads from blocked ranks to the ranks that block them."),
          h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Waiting graph" }, waitingGraph(run)),
          folded("The same as a table", () => waits(run)),
        )
      : null,
    run.groups.length ? progress(run) : null,
    run.warnings.length
      ? card(
          "Warnings",
          h(
            "ul",
            { class: "plain" },
            run.warnings.map(({ file, message }) =>
              h("li", { class: "warning" }, file === run.name ? null : h("b", { class: "file", title: file }, file.split("/").pop() ?? file), prose(message)),
            ),
          ),
        )
      : null,
  );
  return { element, show: () => {}, close: () => {} };
}

/** The page for somebody else, as for other runs. @param {StuckRun} run */
function waysOut({ name }) {
  return h(
    "div",
    { class: "ways-out" },
    isReport ? null : copying("Copy link", () => linkTo({ run: name }), "Copy it from the address bar"),
    h("button", { type: "button", click: () => print() }, "Print"),
  );
}

/**
 * Names of runs as buttons that open them.
 * @param {string[]} names
 * @param {(name: string) => void} select
 */
export const links = (names, select) =>
  names.slice(0, 8).map((name) => h("button", { type: "button", class: "link", click: () => select(name) }, name));

/** @param {StuckRun} run */
function level({ verdict, missing_ranks }) {
  if (verdict === "stuck") return "critical";
  return verdict === "healthy" && !missing_ranks.length ? "healthy" : "info";
}

/** @param {StuckRun} run */
function facts({ ranks, world_size, hosts, library, recorder }) {
  const nodes = new Set(hosts.filter(Boolean)).size;
  const parts = [
    `${ranks.length} of ${count(world_size, "rank")}${nodes > 1 ? ` on ${count(nodes, "node")}` : ""}`,
    recorder === "stacks" ? "Python stacks" : "Flight Recorder dumps",
    library,
  ];
  return parts.flatMap((part) => (part ? [" · ", part] : []));
}

/** @param {StuckFinding} finding */
function fault(finding) {
  const { advice, code: command } = finding.fix_parts;
  const { call } = finding;
  const size = call.input_sizes.length ? call.input_sizes[0].join("×") : "";
  return h(
    "section",
    { class: `card fault ${finding.severity}` },
    h(
      "h2",
      {},
      `${finding.cause.replace(/-/g, " ")} · `,
      h("b", { class: "affected" }, `${finding.ranks.length === 1 ? "rank" : "ranks"} ${ranges(finding.ranks)}`),
      finding.hosts.length ? ` · ${finding.hosts.slice(0, 4).join(", ")}` : "",
      ` · confidence ${finding.confidence}`,
    ),
    h("p", { class: "title" }, breakable(finding.title)),
    h(
      "div",
      { class: "columns" },
      h(
        "div",
        {},
        h("h3", {}, "What was seen"),
        h("p", {}, finding.why),
        h(
          "dl",
          { class: "call" },
          term("collective", `${call.kind} ${call.sequence}${size ? `, ${size} ${call.dtypes.join(", ")}` : ""}`),
          term("group", `${call.description || "process group"} (${call.group}), ranks ${ranges(call.ranks)}`),
          call.site && term("called at", `${call.site.file}:${call.site.line} (${call.site.function})`),
          call.timeout_s !== null && term("timeout", `${call.timeout_s.toLocaleString("en")} s`),
        ),
      ),
      h("div", {}, h("h3", {}, "What to do"), h("p", {}, prose(advice))),
    ),
    command ? copyable(command) : null,
    folded("Each rank of the group", () => states(finding)),
  );
}

/**
 * @param {string} name
 * @param {string} value
 */
const term = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));

/** @param {StuckFinding} finding */
function states({ id, ranks, states: all }) {
  const first = Math.min(...all.flatMap(({ enqueued_ns, last_sign_ns }) => [enqueued_ns, last_sign_ns]).filter((at) => at !== null));
  // Numbers of JavaScript hold ns since 1970 to 0.3 µs: enough for times to be shown in ms.
  const since = (/** @type {number | null} */ at) => (at === null ? "–" : `+${decimals((at - first) / 1e6, 1)} ms`);
  return table(
    ["rank", "host", "this call", "enqueued (its clock)", "last sign of life"],
    all
      .slice(0, READABLE)
      .map(({ rank, host, came, enqueued_ns, last_sign_ns }) => [
        ranks.includes(rank) ? `rank ${rank} ◀` : `rank ${rank}`,
        host || "–",
        came,
        since(enqueued_ns),
        since(last_sign_ns),
      ]),
    `ranks of ${id}`,
  );
}

/** @param {StuckRun} run */
function waits({ waits: all }) {
  return table(
    ["rank", "blocked by", "which", "in"],
    all.slice(0, READABLE).map(({ rank, targets, why, what }) => [`rank ${rank}`, `${targets.length === 1 ? "rank" : "ranks"} ${ranges(targets)}`, WAYS[why], what]),
    "waiting graph",
  );
}

/**
 * How far each rank is in the groups of each kind: the front is the newest collective that a rank of a group enqueued.
 * @param {StuckRun} run
 */
function progress(run) {
  const named = new Map(run.ranks.map((rank, i) => [rank, i]));
  const roots = new Set(run.findings.flatMap(({ ranks }) => ranks));
  /** @type {Map<string, (Front | null)[]>} */
  const rows = new Map();
  for (const { name, description, ranks, enqueued, completed, front } of run.groups) {
    const most = Math.max(...completed);
    const kind = description || `group ${name}`;
    const row = rows.get(kind) ?? run.ranks.map(() => null);
    rows.set(kind, row);
    ranks.forEach((rank, i) => {
      const at = named.get(rank);
      if (at === undefined || enqueued[i] < 0) return;
      const cell = { behind: front - enqueued[i], pending: Math.max(0, enqueued[i] - completed[i]), short: completed[i] < Math.min(most, enqueued[i]), title: `rank ${rank}, group ${name}: enqueued ${enqueued[i]}, completed ${completed[i]}, front ${front}` };
      const before = row[at];
      // Of several groups with one name, the one that shows more.
      if (!before || cell.behind > before.behind || (cell.behind === before.behind && cell.pending > before.pending)) row[at] = cell;
    });
  }
  const told = [...rows].filter(([, cells]) => cells.some((cell) => cell && (cell.behind || cell.pending)));
  const quiet = rows.size - told.length;
  const numbered = run.ranks.length <= NUMBERED;
  const more = quiet ? ` ${count(quiet, "more group")} with nothing pending.` : "";
  const note = numbered
    ? "Above: how many collectives a rank is behind the front, the newest that any rank of its group enqueued. Below: how many it enqueued and did not complete; red where others have completed them."
    : "A column for each rank; above, the ranks at the root. Red: behind the front, the newest collective that any rank of the group enqueued. Point at a cell for its numbers.";
  if (!told.length) return card("Progress of each rank by group", h("p", { class: "note" }, "No rank is behind in any group, and nothing is pending."));
  return card(
    "Progress of each rank by group",
    h("p", { class: "note" }, note + more),
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Progress of each rank by group" },
      h(
        "table",
        { class: numbered ? "fronts" : "fronts many" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "group"), run.ranks.map((rank) => headOf(rank, roots.has(rank), numbered)))),
        h(
          "tbody",
          {},
          told.map(([kind, cells]) => h("tr", {}, h("th", { scope: "row", title: kind }, kind), cells.map((cell) => front(cell, numbered)))),
        ),
      ),
    ),
  );
}

/**
 * @param {number} rank
 * @param {boolean} root
 * @param {boolean} numbered
 */
function headOf(rank, root, numbered) {
  const about = { class: root ? "root" : "even", title: `rank ${rank}` };
  return numbered ? h("th", { scope: "col", ...about }, String(rank)) : h("td", about);
}

/**
 * @param {Front | null} cell
 * @param {boolean} numbered
 */
function front(cell, numbered) {
  if (!cell) return h("td", { class: "none" });
  const kind = cell.behind ? "behind" : cell.pending ? "pending" : "even";
  if (!numbered) return h("td", { class: kind, title: cell.title });
  return h("td", { class: kind, title: cell.title }, h("b", {}, cell.behind ? `−${cell.behind}` : "0"), h("small", { class: cell.short ? "short" : null }, cell.pending ? String(cell.pending) : "·"));
}
