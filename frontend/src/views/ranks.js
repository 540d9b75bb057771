// All ranks beside each other. Of many: where they stand on their nodes, which stand out and which are alike, and how each
// owner spreads. Then the table that the field knows: compute, communication and their overlap on each rank. Straggler wait
// is not communication there: with it, the ranks that wait for a straggler look as if they overlapped nothing.

import { detail } from "../detail.js";
import { card, h } from "../dom.js";
import { among, count, ms, percent } from "../format.js";
import { grid, plain } from "../grid.js";
import { affectedRanks, faults, hasGpu, idleName, numberOf, ownerName } from "../model.js";
import { bands } from "../ranks/bands.js";
import { rankGrid } from "../ranks/grid.js";
import { BUSY, groupsOf, ofRanks, ownersOf } from "../ranks/spread.js";

/** @typedef {Record<string, number[]> & {nodes: string[]}} Told columns, one row per rank */

/** @type {import("../views.js").View} */
export const ranks = {
  title: "Ranks",
  fragment: "ranks",
  render(element, shown) {
    if (shown.views && shown.views.ranks.length >= MANY) element.append(...overview(shown, shown.views));
    return detail(element, shown.diagnosis.name, "ranks", (told) => [compared(told, shown)]);
  },
  table: () => null, // it is a table
  keys: [["Arrow keys, Enter", "move over the ranks of the picture; select one"]],
};

/** From so many ranks on, pictures of all stand above the table. */
const MANY = 8;

/**
 * Where the ranks stand, by one of several times, and what groups they make.
 * @param {import("../views.js").Shown} shown
 * @param {import("../model.js").Views} views
 */
function overview(shown, views) {
  const { diagnosis, place, keep, link } = shown;
  const affected = affectedRanks(diagnosis);
  const column = views.steps.indexOf(Number(place.step || NaN));
  const body = h("div");
  const report = { diagnosis, views };
  const busy = ofRanks(report, BUSY, column);
  const owned = ownersOf(report, column);
  const measures = [{ id: BUSY, name: "busy time (step minus straggler wait)", values: busy }, ...owned.map(({ owner, values }) => ({ id: owner, name: ownerName(owner), values }))];
  const draw = (/** @type {string | undefined} */ wanted) => {
    const { values } = measures.find((one) => one.id === wanted) ?? measures[0];
    body.replaceChildren(...rankGrid(views, values, affected, place.rank ? Number(place.rank) : null, (rank) => keep({ rank: String(rank) })));
  };
  const choice = /** @type {HTMLSelectElement} */ (
    h(
      "select",
      {
        change: () => {
          keep({ colour: choice.value });
          draw(choice.value);
        },
      },
      measures.map(({ id, name }) => h("option", { value: id, selected: id === (place.colour ?? place.owner) }, name)),
    )
  );
  draw(place.colour ?? place.owner);
  const groups = groupsOf(views, busy, faults(diagnosis));
  const when = column < 0 ? `mean of ${count(views.steps.length, "step")}` : `step ${views.steps[column]}`;
  return [
    card(
      "Ranks on their nodes",
      h("div", { class: "controls" }, h("label", {}, "Coloured by", choice)),
      h("p", { class: "note" }, `ms, ${when}. Columns are nodes, rows the ranks of a node: a slow node is a column, a slow rail a row.`),
      body,
    ),
    h("div", { class: "rank-groups" }, card("Groups and outliers", h("p", { class: "note" }, `Busy time, ${when}.`), grouped(groups, diagnosis, link)), card("Budget of all ranks", h("p", { class: "note" }, `ms, ${when}.`), bands(views.ranks, owned, groups))),
  ];
}

/**
 * @param {import("../ranks/spread.js").Group[]} groups
 * @param {import("../model.js").Diagnosis} diagnosis
 * @param {import("../views.js").Shown["link"]} link
 */
function grouped(groups, diagnosis, link) {
  const named = (/** @type {import("../ranks/spread.js").Group} */ { name, ranks: some, finding }) => {
    const text = name ? `${some.length.toLocaleString("en")} ${name} ranks` : some.length > 8 ? `${some.length.toLocaleString("en")} ranks, ${some[0]} to ${some[some.length - 1]}` : among(some, diagnosis.ranks, "rank");
    if (!finding) return text;
    const anchor = link("findings", { finding: finding.id });
    anchor.textContent = `${numberOf(diagnosis, finding.id)}: ${text}`;
    return anchor;
  };
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "Groups of ranks" },
    h(
      "table",
      { class: "groups" },
      h("thead", {}, h("tr", {}, ["ranks", "number", "median", "p99", "cost a step"].map((head) => h("th", { scope: "col" }, head)))),
      h(
        "tbody",
        {},
        groups.map((group) =>
          h("tr", {}, h("th", { scope: "row" }, named(group), group.cause && h("small", {}, group.cause)), h("td", {}, group.ranks.length.toLocaleString("en")), h("td", {}, ms(group.spread.median)), h("td", {}, group.ranks.length > 1 ? ms(group.spread.p99) : "–"), h("td", {}, group.finding ? ms(group.finding.cost_ms) : "–")),
        ),
      ),
    ),
  );
}

/**
 * @param {Told} told
 * @param {import("../views.js").Shown} shown
 */
function compared(told, shown) {
  const { diagnosis } = shown;
  const affected = affectedRanks(diagnosis);
  const roles = shown.views?.roles.some(Boolean) ? shown.views.roles : null;
  const rows = told.ranks.map((rank, i) => [
    affected.has(rank) ? `rank ${rank} ◀` : `rank ${rank}`,
    ...(roles ? [roles[i]] : []),
    told.nodes[i],
    told.step_ms[i],
    told.busy_ms[i],
    told.wait_ms[i],
    told.compute_ms[i],
    told.communication_ms[i],
    told.moving_ms[i],
    told.moving_ms[i] > 0 ? told.hidden_ms[i] / told.moving_ms[i] : null,
    told.transfer_ms[i],
    told.copy_ms[i],
    told.idle_ms[i],
  ]);
  return card(
    "Compute and communication of each rank",
    h(
      "p",
      { class: "note" },
      affected.size
        ? "ms per step, mean over steps. ◀ marks affected ranks. A straggler has a long busy time and a short straggler wait; the ranks that wait for it have the reverse."
        : "ms per step, mean over steps. No finding is limited to some ranks.",
      told.moving_ms.some((ms) => ms > 0) ? " Communication without wait is from the last arrival, by the common clock, to the end on this rank. The times in Communication and Kernels need no common clock: there a call takes as long as on the rank that arrives last." : null,
    ),
    grid({
      title: "ranks",
      shown,
      search: "Filter",
      sort: roles ? 4 : 3,
      marked: ([name]) => String(name).endsWith("◀"),
      columns: [
        { head: "rank" },
        ...(roles ? [{ head: "role" }] : []),
        { head: "node" },
        { head: "step", unit: "ms", show: plain },
        { head: "busy time", unit: "ms", show: plain, bar: true, title: "step minus straggler wait" },
        { head: "straggler wait", unit: "ms", show: plain, bar: true, title: "only communication runs, and some rank has not arrived" },
        { head: "compute", unit: "ms", show: plain, bar: true },
        { head: "comm.", unit: "ms", show: plain, title: "communication from this rank's arrival on, straggler wait included, overlapped or not (as HTA and nsys count it)" },
        { head: "comm. without wait", unit: "ms", show: plain, title: "communication once all ranks have arrived, overlapped or exposed" },
        { head: "overlap", show: percent, title: "share of communication without wait that runs beside compute or a copy" },
        { head: "exposed", unit: "ms", show: plain, bar: true, title: "exposed communication: only communication runs, and all ranks have arrived" },
        { head: "copy", unit: "ms", show: plain },
        { head: idleName(hasGpu(diagnosis)), unit: "ms", show: plain, title: hasGpu(diagnosis) ? "nothing runs on the GPU" : "no operator runs, and no communication" },
      ],
      rows,
    }),
  );
}
