// The open run against an earlier one, whose name stands in the address as `before`.

import { linkTo } from "../address.js";
import { fetchComparison, fetchRuns, isReport } from "../api.js";
import { compared, later } from "../compared.js";
import { card, h, prose } from "../dom.js";
import { clockTime, count, ms, signed } from "../format.js";
import { grid, plain } from "../grid.js";
import { lossOf } from "../model.js";
import { bySimilarity, natural } from "../runs/similar.js";
import { howFar } from "../states.js";

/** @typedef {import("../model.js").RunEntry} RunEntry */
/** @typedef {import("../views.js").Shown} Shown */

/** While a run is being read. */
const AGAIN_MS = 1_000;

/** @type {import("../views.js").View} */
export const compare = {
  title: "Compare",
  fragment: "compare",
  render(element, shown) {
    const chosen = h("div");
    const main = h("div", {}, h("p", { class: "note", role: "status" }, "Loading…"));
    const all = h("div");
    element.append(chosen, main, all);
    let left = false;
    let timer = 0;

    fetchRuns().then(({ runs }) => !left && choose(runs), say);

    /** @param {RunEntry[]} runs */
    function choose(runs) {
      const others = bySimilarity(runs.filter(({ name, kind }) => name !== shown.diagnosis.name && !kind), shown.diagnosis);
      const before = others.find(({ name }) => name === shown.place.before) ?? (others.length === 1 ? others[0] : null);
      chosen.replaceChildren(...(others.length ? [picker(others, before, pick, shown)] : []));
      all.replaceChildren(...series(runs.filter(({ kind }) => !kind), shown, before !== null));
      if (before) ask(before.name);
      else main.replaceChildren(others.length ? candidates(others, pick, shown) : alone());

      /** @param {string} name */
      function pick(name) {
        shown.keep({ before: name });
        choose(runs);
        chosen.querySelector("select")?.focus();
      }
    }

    /** @param {string} before */
    async function ask(before) {
      clearTimeout(timer);
      const after = shown.diagnosis.name;
      const asked = () => !left && chosen.querySelector("select")?.value === before;
      try {
        const answer = await fetchComparison(before, after);
        if (!asked()) return;
        if (answer.state === "ready") main.replaceChildren(...compared(answer.comparison, shown));
        else {
          const far = answer.progress ? ` ${howFar(answer.progress)}` : "";
          say(`Reading ${answer.run}.${far}`);
          timer = setTimeout(() => asked() && ask(before), AGAIN_MS);
        }
      } catch (error) {
        if (asked()) say(error);
      }
    }

    /** @param {unknown} what */
    function say(what) {
      main.replaceChildren(h("p", { class: "note", role: "status" }, what instanceof Error ? what.message : String(what)));
    }

    return () => {
      left = true;
      clearTimeout(timer);
    };
  },
  table: () => null, // it has tables of its own
};

/** What to do where nothing is there to compare with. */
function alone() {
  const advice = isReport
    ? "`ddp-doctor diagnose LOGDIR --html FILE` on a directory of several runs makes a report that compares them."
    : "Record the job again after a change, or another job, into a directory next to this one: it appears in the list of runs, and can be compared here.";
  return card(
    "No other run to compare with",
    h(
      "p",
      { class: "why" },
      prose(`${advice} \`ddp-doctor compare BEFORE AFTER\` compares runs of any two directories.`),
    ),
  );
}

/**
 * @param {RunEntry[]} others
 * @param {RunEntry | null} before
 * @param {(name: string) => void} pick
 * @param {Shown} shown
 */
function picker(others, before, pick, { diagnosis }) {
  const select = /** @type {HTMLSelectElement} */ (
    h(
      "select",
      { change: () => pick(select.value) },
      !before && h("option", { value: "", selected: true, disabled: true }, "Choose a run"),
      others.map((run) => h("option", { value: run.name, selected: run.name === before?.name, disabled: run.state === "failed" }, run.state === "failed" ? `${run.name} (could not be read)` : dated(run))),
    )
  );
  const other = before && { run: before.name, view: compare.fragment, before: diagnosis.name };
  return h(
    "div",
    { class: "controls" },
    h("label", {}, "Before", select),
    h("span", { class: "after" }, "After ", h("b", {}, diagnosis.name)),
    other && h("a", { class: "swap", href: linkTo(other), target: "_top" }, "Swap"),
  );
}

/** @param {RunEntry} run */
const dated = ({ name, modified_s }) => (modified_s ? `${name}, ${clockTime(modified_s)}` : name);

/**
 * The runs to choose from, with what is known of them.
 * @param {RunEntry[]} others
 * @param {(name: string) => void} pick
 * @param {Shown} shown
 */
function candidates(others, pick, { diagnosis }) {
  const rows = others
    .filter(({ state }) => state !== "failed")
    .map(({ name, step_ms, ranks, modified_s }) =>
      h(
        "li",
        {},
        h("button", { type: "button", class: "pick", click: () => pick(name) }, name),
        h("span", { "data-quantity": "step time" }, step_ms === null ? "not read yet" : ms(step_ms), ranks !== null && h("small", {}, count(ranks, "rank")), modified_s ? h("small", {}, clockTime(modified_s)) : null),
      ),
    );
  return card(
    `Compare ${diagnosis.name} with which run?`,
    h("p", { class: "note" }, `${diagnosis.name} takes ${ms(diagnosis.step_ms)} a step on ${count(diagnosis.ranks.length, "rank")}.`),
    h("ul", { class: "candidates" }, rows),
  );
}

/** From so many runs on they make a series. */
const SERIES = 3;

/**
 * All runs that are read, in the order of their names, as those of a sweep or of one job over time.
 * @param {RunEntry[]} runs
 * @param {Shown} shown
 * @param {boolean} isFolded
 */
function series(runs, shown, isFolded) {
  const read = runs.filter(({ state, step_ms }) => state === "ready" && step_ms !== null).sort((a, b) => natural(a.name, b.name));
  if (read.length < SERIES) return [];
  const { name: open, step_ms: now } = shown.diagnosis;
  const title = `All ${read.length} runs`;
  const content = () => [
      h("p", { class: "note" }, `Step time and loss in ms, in the order of names; the change is against ${open}.`),
      grid({
        title: "runs",
        shown,
        sort: 0,
        descending: false,
        search: "Filter",
        marked: ([name]) => name === open,
        columns: [
          { head: "run", link: (name, text) => (name === open ? null : against(name, text, shown)) },
          { head: "ranks", show: (/** @type {number} */ ranks) => ranks.toLocaleString("en") },
          { head: "step", unit: "ms", show: plain, bar: true },
          { head: "change", show: (/** @type {number} */ share) => `${signed(100 * share, 1)}\u00a0%`, title: `step time against ${open}` },
          { head: "loss", unit: "ms", show: plain, title: "what its findings cost a step, or what nothing explains" },
          { head: "verdict" },
          { head: "recorded", show: clockTime },
        ],
        rows: read.map((run) => [run.name, run.ranks, run.step_ms, now > 0 && run.step_ms !== null ? run.step_ms / now - 1 : null, lossOf(run), run.verdict ?? "", run.modified_s]),
      }),
  ];
  return [isFolded ? later(title, content) : card(title, ...content())];
}

/**
 * @param {string} name
 * @param {string} text
 * @param {Shown} shown
 */
function against(name, text, { link }) {
  const anchor = link(compare.fragment, { before: name });
  anchor.textContent = text;
  return anchor;
}
