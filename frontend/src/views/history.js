// A job's hours: what changed, when, on which rank, and where the time went; its captures, to open and to compare.

import { linkTo } from "../address.js";
import { fetchRuns } from "../api.js";
import { detail } from "../detail.js";
import { card, copyable, folded, h } from "../dom.js";
import { count, decimals, ms, percent } from "../format.js";
import { instant } from "../history/clock.js";
import { collectiveTable } from "../history/collective_groups.js";
import { collectivesPicture } from "../history/collectives.js";
import { accountOf, binOf, sharesOf, slowestRows } from "../history/model.js";
import { coloursOf, darkest, hoursPicture } from "../history/picture.js";
import { trainsNothing } from "../model.js";
import { numbers } from "../table.js";

/** @typedef {import("../history/model.js").Hours} Hours */
/** @typedef {import("../history/model.js").Range} Range */
/** @typedef {import("../views.js").Shown} Shown */

/** Events that are listed at once; rows that a range names, and how much slower they are at least. */
const [EVENTS, ROWS, LEAST] = [8, 3, 0.01];
/** Captures are listed up to this many. */
const CAPTURES = 200;

/** @type {import("../views.js").View} */
export const history = {
  title: "Hours",
  fragment: "history",
  render: (element, shown) => detail(element, shown.diagnosis.name, "history", (told) => [...(told.folder === null ? [absent(told.problems, shown.diagnosis)] : drawn(told, shown)), told.collectives.length ? card("Collectives", collectives(told)) : null]),
  table: () => null, // it has one of its own
  keys: [
    ["Arrow keys", "move along the hours; with Shift, choose a range"],
    ["+ and −", "zoom"],
    ["Enter", "choose the capture under the cursor"],
    ["Esc", "show all"],
  ],
};

/**
 * @param {string[]} problems
 * @param {import("../model.js").Diagnosis} diagnosis
 */
function absent(problems, diagnosis) {
  const lacks = "No step times lie beside this capture, and no log that has them.";
  return card(
    "Hours of the job",
    h("p", { class: "note" }, trainsNothing(diagnosis) ? lacks : `${lacks} A Doctor records the time of every step, also between captures, with:`),
    trainsNothing(diagnosis) ? null : copyable("doctor = Doctor(LOGDIR, every=1000, history=True)"),
    problems.map((problem) => h("p", { class: "note" }, problem)),
  );
}

/**
 * @param {Hours} hours
 * @param {Shown} shown
 */
function drawn(hours, shown) {
  let quantity = /** @type {"median" | "longest"} */ (shown.place.quantity === "longest" ? "longest" : "median");
  let rows = hours.heat ? sharesOf(hours.heat, quantity) : [];
  let range = rangeOf(shown.place.steps, hours);
  /** Steps of captures, two at most. @type {number[]} */
  let chosen = [];
  const account = h("div", { class: "hours-account", role: "status" });
  const captures = h("div");
  const picture = hoursPicture({ hours, rows: () => rows, range: () => range, chosen: () => chosen, choose, toggle });
  const shades = h("span", { class: "soft" });

  /** @param {Range | null} to */
  function choose(to) {
    range = to;
    shown.keep({ steps: to ? `${stepOf(hours, to.from)}-${stepOf(hours, to.to) - 1}` : "" });
    explain();
    picture.redraw();
  }

  /** @param {number} step */
  function toggle(step) {
    chosen = chosen.includes(step) ? chosen.filter((one) => one !== step) : [...chosen.slice(-1), step].sort((a, b) => a - b);
    list();
    picture.redraw();
  }

  function explain() {
    account.replaceChildren(...explained(hours, rows, range, () => picture.show(range), () => choose(null)));
    shades.textContent = `0 to ${percent(darkest(rows))} above the median rank`;
  }

  function list() {
    captures.replaceChildren(captureList(hours, chosen, toggle));
  }

  explain();
  list();
  fetchRuns().then(
    ({ runs }) => {
      const known = new Set(runs.map(({ name }) => name));
      for (const one of hours.captures) if (one.run !== null && !known.has(one.run)) one.run = null;
      for (const event of hours.events) if (!known.has(event.before ?? "") || !known.has(event.after ?? "")) event.before = event.after = null;
      list();
      events.replaceChildren(eventList(hours, choose));
    },
    () => {},
  );
  const events = h("div", {}, eventList(hours, choose));
  const choice = /** @type {HTMLSelectElement} */ (
    h(
      "select",
      {
        change: () => {
          quantity = choice.value === "longest" ? "longest" : "median";
          rows = hours.heat ? sharesOf(hours.heat, quantity) : [];
          shown.keep({ quantity: quantity === "longest" ? "longest" : "" });
          explain();
          picture.redraw();
        },
      },
      h("option", { value: "median", selected: quantity === "median" }, "median busy time"),
      h("option", { value: "longest", selected: quantity === "longest" }, "longest busy time"),
    )
  );
  const colours = coloursOf(hours);
  return [
    h(
      "div",
      { class: "hours-parts" },
      card(
        hours.headline,
        h("p", { class: "note" }, `${hours.steps.toLocaleString("en")} steps${whose(hours)}, ${instant(hours.edges_s[0])} to ${instant(hours.edges_s[hours.edges_s.length - 1])}; ${ms(hours.median_step_ms)} a step (p99 ${ms(hours.p99_step_ms)}). A column of the picture is ${count(hours.bin_steps, "step")}.`),
        h(
          "div",
          { class: "controls" },
          hours.heat && h("label", {}, "Ranks by", choice),
          hours.heat && shades,
          h("button", { type: "button", click: () => picture.show(null) }, "Show all"),
        ),
        h("ul", { class: "legend flush" }, [...colours].map(([name, colour]) => h("li", {}, h("i", { class: `owner-${colour}` }), name))),
        picture.frame,
        picture.readout,
        account,
        hours.source && h("p", { class: "note" }, hours.source),
        !hours.source && !hours.names_ranks && hours.ranks > 1 && h("p", { class: "note" }, "No rank can be named: doctor.watch(model) records how long each is busy."),
        hours.problems.map((problem) => h("p", { class: "note" }, problem)),
        folded("The same numbers as a table", () => numbers({ title: "hours" }, tableOf(hours))),
      ),
      h("div", {}, figures(hours), card("Events", events), hours.captures.length > 0 && card("Captures", captures), ),
    ),
  ];
}

/** @param {Hours} hours */
function collectives({ collectives: lines, collectives_over_time: over }) {
  const said = h("div", { class: "collectives-said" }, lines.map((line) => h("p", {}, line)));
  if (over === null) return said;
  return [said, collectivesPicture(over), folded("The same numbers as a table", () => numbers({ title: "collectives" }, collectiveTable(over)))];
}

/** The ranks of the job, and its nodes, as far as they are known. @param {Hours} hours */
const whose = ({ ranks, nodes }) => `${ranks ? ` of ${count(ranks, "rank")}` : ""}${nodes ? ` on ${count(nodes, "node")}` : ""}`;

/** @param {Hours} hours */
function figures({ goodput, goodput_trend: trend, slowdown, slowest_workers: slowest, last_stage: last }) {
  const facts = /** @type {[string, string, string][]} */ ([["Goodput", percent(goodput), "of its time trained"]]);
  if (slowdown !== null) facts.push(["S", `${decimals(slowdown, 3)}×`, "slowdown by stragglers"]);
  if (slowest !== null) facts.push(["M_W", percent(slowest), "of it by the slowest 3 % of ranks"]);
  if (last !== null) facts.push(["M_S", percent(last), "of it by the pipeline's last stage"]);
  const tiles = h("dl", { class: "hours-figures" }, facts.map(([name, value, why]) => h("div", { class: "card" }, h("dt", {}, name), h("dd", {}, h("b", {}, value), h("small", {}, why)))));
  return h("div", {}, tiles, trend && h("p", { class: "note" }, `Goodput ${trend}.`));
}

/**
 * @param {Hours} hours
 * @param {(range: Range) => void} choose
 */
function eventList(hours, choose) {
  if (!hours.events.length) return h("p", { class: "note" }, "None: no change, period, drift or rare steps.");
  const items = hours.events.map((event) => {
    const range = { from: binOf(hours, event.first_step), to: binOf(hours, event.last_step) + 1 };
    return h(
      "li",
      {},
      h("b", {}, `${event.what}.`),
      h("p", {}, event.cost),
      h(
        "p",
        { class: "controls" },
        h("button", { type: "button", click: () => choose(range), "aria-label": `Choose its range: ${event.what}` }, "Choose its range"),
        event.before !== null && event.after !== null && comparison(event.before, event.after, "Compare the captures around it"),
      ),
    );
  });
  return h(
    "div",
    {},
    h("ol", { class: "hours-events" }, items.slice(0, EVENTS)),
    items.length > EVENTS && folded(`${items.length - EVENTS} more`, () => h("ol", { class: "hours-events", start: EVENTS + 1 }, items.slice(EVENTS))),
  );
}

/**
 * @param {Hours} hours
 * @param {number[]} chosen
 * @param {(step: number) => void} toggle
 */
function captureList(hours, chosen, toggle) {
  const [one, other] = chosen.map((step) => hours.captures.find((capture) => capture.step === step));
  const links = [one, other].filter((capture) => capture?.run).map((capture) => h("a", { href: linkTo({ run: String(capture?.run), view: "verdict" }), target: "_top" }, `Verdict of step ${capture?.step.toLocaleString("en")}`));
  return h(
    "div",
    {},
    h("p", { class: "note" }, "Choose one for its verdict, two to compare them."),
    h("p", { class: "controls", role: "status" }, links, one?.run && other?.run && comparison(one.run, other.run, "Compare both")),
    h(
      "ul",
      { class: "hours-captures scroll", tabindex: 0, "aria-label": "Captures" },
      hours.captures.slice(0, CAPTURES).map(({ step, at_s, run }) =>
        h(
          "li",
          {},
          h(
            "label",
            {},
            h("input", { type: "checkbox", checked: chosen.includes(step), disabled: run === null, change: () => toggle(step) }),
            `step ${step.toLocaleString("en")}`,
            at_s !== null && h("small", {}, instant(at_s)),
          ),
        ),
      ),
    ),
    hours.captures.length > CAPTURES && h("p", { class: "note" }, `The first ${CAPTURES} of ${hours.captures.length.toLocaleString("en")}.`),
  );
}

/**
 * @param {string} before
 * @param {string} after
 * @param {string} text
 */
const comparison = (before, after, text) => h("a", { href: linkTo({ run: after, view: "compare", before }), target: "_top" }, text);

/**
 * Where the time of a range went, and which ranks were slow in it; of all where none is chosen.
 * @param {Hours} hours
 * @param {Float32Array[]} rows
 * @param {Range | null} range
 * @param {() => void} zoom
 * @param {() => void} clear
 */
function explained(hours, rows, range, zoom, clear) {
  const bins = range ?? { from: 0, to: hours.edges_s.length - 1 };
  const { whole, parts } = accountOf(hours, bins);
  const told = parts.filter(([, seconds]) => seconds / whole >= 0.0005).map(([name, seconds]) => `${name} ${percent(seconds / whole)}`);
  const last = stepOf(hours, bins.to) - 1;
  const slow = hours.heat
    ? slowestRows(rows, bins, ROWS, LEAST).map(([row, share]) => `${name(hours.heat, row)} ${percent(share)} above the median rank`)
    : [];
  return [
    h("b", {}, range ? `Steps ${stepOf(hours, bins.from).toLocaleString("en")} to ${last.toLocaleString("en")}, ${instant(hours.edges_s[bins.from])} to ${instant(hours.edges_s[bins.to])}` : "All steps"),
    h("p", {}, `${duration(whole)}: ${told.join(", ")}.`),
    slow.length ? h("p", {}, `On average ${slow.join(", ")}.`) : "",
    range ? h("p", { class: "controls" }, h("button", { type: "button", click: zoom }, "Zoom in"), h("button", { type: "button", click: clear }, "Clear")) : "",
  ];
}

/** @param {import("../history/model.js").HeatLevels | null} heat @param {number} row */
const name = (heat, row) => (heat === null ? "" : heat.of > 1 ? `ranks ${heat.ranks[row]}-${heat.ranks[row] + heat.of - 1} on ${heat.nodes[row]}` : `rank ${heat.ranks[row]} on ${heat.nodes[row]}`);

/** @param {Hours} hours @param {number} bin */
const stepOf = ({ first_step, bin_steps }, bin) => first_step + bin * bin_steps;

/** @param {number} seconds */
const duration = (seconds) => (seconds >= 3600 ? `${decimals(seconds / 3600, 1)}\u00a0h` : ms(seconds * 1000));

/**
 * The bins of "8000-8999"; null where the address names none.
 * @param {string | undefined} text
 * @param {Hours} hours
 * @returns {Range | null}
 */
function rangeOf(text, hours) {
  const found = /^(\d+)-(\d+)$/.exec(text ?? "");
  return found && { from: binOf(hours, Number(found[1])), to: binOf(hours, Number(found[2])) + 1 };
}

/**
 * @param {Hours} hours
 * @returns {import("../views.js").Table}
 */
function tableOf({ edges_s, first_step, bin_steps, step_ms, lost_s }) {
  const kinds = Object.entries(lost_s);
  return {
    heads: ["from step", "at", "minimum, ms", "median, ms", "p99, ms", "maximum, ms", ...kinds.map(([kind]) => `${kind}, s`)],
    rows: edges_s.slice(0, -1).map((at, bin) => [
      `step ${first_step + bin * bin_steps}`,
      instant(at),
      ...[step_ms.low, step_ms.median, step_ms.p99, step_ms.high].map((values) => values[bin]),
      ...kinds.map(([, seconds]) => seconds[bin]),
    ]),
  };
}
