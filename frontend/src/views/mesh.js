// The ranks as the job's parallelism divides them: data, tensor, pipeline, experts. A slow stage is a panel, a slow tensor
// group a column, and what each dimension communicates is a table.

import { card, h } from "../dom.js";
import { count, ms, percent, perStep } from "../format.js";
import { grid, plain } from "../grid.js";
import { size } from "../memory/contents.js";
import { affectedRanks, ownerName } from "../model.js";
import { axesOf, layoutOf } from "../ranks/mesh.js";
import { meshPicture } from "../ranks/mesh_picture.js";
import { BUSY, ofRanks, ownersOf } from "../ranks/spread.js";

/** @typedef {import("../views.js").Shown} Shown */
/** @typedef {import("../../schema.js").MeshTable} MeshTable */
/** @typedef {{id: string, name: string, values: number[], show: (value: number) => string}} Measure a number of each rank */

/** @type {import("../views.js").View} */
export const mesh = {
  title: "Mesh",
  fragment: "mesh",
  lacks: ({ diagnosis }) => {
    const found = diagnosis.mesh?.dimensions ?? [];
    if (found.length > 1) return "";
    return found.length ? `The job's ranks are divided in one way only (${found[0].name}).` : "No process group and no message shows how the job's ranks are divided.";
  },
  render(element, shown) {
    const table = shown.diagnosis.mesh;
    if (!table || mesh.lacks?.(shown)) {
      element.append(h("p", { class: "note" }, mesh.lacks?.(shown)));
      return;
    }
    element.append(...(axesOf(table).length > 1 ? [overview(table, shown)] : []), dimensions(table, shown));
  },
  table: (shown) => {
    const known = shown.diagnosis.mesh;
    if (!known || mesh.lacks?.(shown)) return null;
    return () => {
      const measures = measuresOf(shown);
      const names = known.dimensions.map(({ name }) => name);
      return {
        heads: ["rank", ...names, ...measures.map(({ name, id }) => `${name}, ${id === PEAK ? "bytes" : "ms"}`)],
        rows: shown.diagnosis.ranks.map((rank, i) => [`rank ${rank}`, ...names.map((name) => known.coordinates[rank]?.[name] ?? null), ...measures.map(({ values }) => values[i])]),
      };
    };
  },
  keys: [["Arrow keys, Enter", "move over the ranks of the picture; select one"]],
};

/** What a rank allocates at most, beside the owners of its time. */
const PEAK = "peak";

/**
 * @param {Shown} shown
 * @returns {Measure[]}
 */
function measuresOf({ diagnosis, views, place }) {
  if (!views) return [];
  const report = { diagnosis, views };
  const column = views.steps.indexOf(Number(place.step || NaN));
  const peak = new Map(diagnosis.memory?.ranks.map(({ rank, allocated }) => [rank, allocated]));
  return [
    { id: BUSY, name: "busy time (step minus straggler wait)", values: ofRanks(report, BUSY, column), show: ms },
    ...ownersOf(report, column).map(({ owner, values }) => ({ id: owner, name: ownerName(owner), values, show: ms })),
    ...(peak.size ? [{ id: PEAK, name: "peak of allocated memory", values: diagnosis.ranks.map((rank) => peak.get(rank) ?? NaN), show: size }] : []),
  ];
}

/**
 * Where the ranks stand in the mesh, by one of several numbers.
 * @param {MeshTable} table
 * @param {Shown} shown
 */
function overview(table, shown) {
  const { diagnosis, views, place, keep } = shown;
  const measures = measuresOf(shown);
  const affected = affectedRanks(diagnosis);
  const node = new Map(views?.ranks.map((rank, i) => [rank, views.nodes[i]]));
  const names = table.dimensions.map(({ name }) => name);
  const axes = axesOf(table).map(({ name }) => name);
  const wanted = { colour: place.colour ?? place.owner, rows: place["mesh-rows"], columns: place["mesh-columns"] };
  const body = h("div");
  const choices = h("div", { class: "controls" });

  function draw() {
    const layout = layoutOf(table, wanted.rows, wanted.columns);
    const measure = measures.find(({ id }) => id === wanted.colour) ?? measures[0];
    choices.replaceChildren(
      choice("Rows", names, names, layout.rows, (value) => change({ rows: value, columns: value === layout.columns ? layout.rows : layout.columns })),
      choice("Columns", names, names, layout.columns, (value) => change({ columns: value, rows: value === layout.rows ? layout.columns : layout.rows })),
      choice(
        "Coloured by",
        measures.map(({ id }) => id),
        measures.map(({ name }) => name),
        measure?.id ?? "",
        (value) => change({ colour: value }),
      ),
    );
    const nameOf = (/** @type {number} */ rank) => {
      const at = axes.flatMap((name) => (name in (table.coordinates[rank] ?? {}) ? [`${name} ${table.coordinates[rank][name]}`] : []));
      return `rank ${rank} (${at.join(", ")})${node.get(rank) ? ` on ${node.get(rank)}` : ""}`;
    };
    body.replaceChildren(...(measure ? meshPicture({ mesh: table, layout, ranks: diagnosis.ranks, values: measure.values, show: measure.show, nameOf, affected, select: (rank) => keep({ rank: String(rank) }) }) : []));
  }

  /** @param {Partial<typeof wanted>} changes */
  function change(changes) {
    Object.assign(wanted, changes);
    keep({ colour: wanted.colour ?? "", "mesh-rows": wanted.rows ?? "", "mesh-columns": wanted.columns ?? "" });
    const focused = [...choices.querySelectorAll("select")].indexOf(/** @type {HTMLSelectElement} */ (document.activeElement));
    draw();
    choices.querySelectorAll("select")[focused]?.focus();
  }

  draw();
  const steps = views?.steps ?? [];
  const step = steps.indexOf(Number(place.step || NaN));
  const when = step < 0 ? `mean of ${count(steps.length, "step")}` : `step ${steps[step]}`;
  return card("Ranks in the mesh", choices, h("p", { class: "note" }, `${when[0].toUpperCase()}${when.slice(1)}. A cell is a rank; one scale for all panels. Bars are the means of rows and columns.`), body);
}

/**
 * @param {string} label
 * @param {string[]} values
 * @param {string[]} texts
 * @param {string} chosen
 * @param {(value: string) => void} changed
 */
function choice(label, values, texts, chosen, changed) {
  const options = values.map((value, i) => h("option", { value, selected: value === chosen }, texts[i]));
  return h("label", {}, label, h("select", { change: (/** @type {Event} */ event) => changed(/** @type {HTMLSelectElement} */ (event.target).value) }, options));
}

/**
 * What each dimension communicates in a step.
 * @param {MeshTable} table
 * @param {Shown} shown
 */
function dimensions(table, shown) {
  const rows = table.dimensions.map((one) => [
    one.name,
    one.size,
    one.within_node === null ? "not known" : one.within_node ? "yes" : "no",
    one.calls,
    one.megabytes,
    one.wait_ms,
    one.transfer_ms,
    one.exposed_ms,
    one.share,
    one.bus_gb_s,
  ]);
  const guessed = table.dimensions.filter(({ inferred }) => inferred);
  return card(
    "What each dimension communicates",
    h("p", { class: "note" }, "Of a step: bytes and calls of one group, times the mean over ranks."),
    grid({
      title: "dimensions",
      shown,
      sort: 7,
      columns: [
        { head: "dimension", title: "dp: data, tp: tensor, pp: pipeline, ep: experts, cp: context; joined by + where a group is of several" },
        { head: "ranks", title: "of one group" },
        { head: "within a node", title: "whether no group has ranks on two nodes" },
        { head: "calls", show: perStep },
        { head: "size", quantity: "bytes in a step", unit: "MB", show: (value) => size(value * 1e6) },
        { head: "straggler wait", quantity: "straggler wait in a dimension", unit: "ms", show: plain, bar: true, title: "from a rank's arrival until the last one has arrived" },
        { head: "without wait", unit: "ms", show: plain, bar: true, title: "communication once all ranks have arrived" },
        { head: "exposed", unit: "ms", show: plain, bar: true, title: "the part of communication without wait that has no compute beside it" },
        { head: "share of the step", show: percent, title: "of exposed communication" },
        { head: "busbw, GB/s", show: plain, title: "bytes / time × the factor of nccl-tests" },
      ],
      rows,
    }),
    ...table.dimensions.flatMap(({ advice }) => advice).map((sentence) => h("p", { class: "note" }, sentence)),
    guessed.length ? h("p", { class: "note" }, `No description names ${guessed.map(({ name, inferred }) => `${name} (inferred: ${inferred})`).join("; ")}.`) : null,
  );
}
