// The numbers behind communication: by kind and group, by node, and each collective.

import { h } from "../dom.js";
import { briefly, ms, perStep, percent } from "../format.js";
import { grid, plain } from "../grid.js";
import { chosen } from "../nccl.js";
import { kindOf, named, size, time, times } from "./family.js";

/** @typedef {import("../views.js").Shown} Shown */
/** @typedef {import("./family.js").Family} Family */
/** @typedef {import("./family.js").Node} Node */

/**
 * @param {Family[]} families
 * @param {Shown} shown
 */
export function summary(families, shown) {
  const compared = families.some(({ slowdown }) => slowdown !== null);
  /** @type {[import("../grid.js").Column, (family: Family) => import("../grid.js").Value][]} */
  const columns = [
    [{ head: "collective" }, kindOf],
    [{ head: "ranks" }, ({ ranks: some }) => briefly(some)],
    [{ head: "nodes", title: "how many its ranks are on" }, ({ nodes }) => nodes.length || null],
    [{ head: "calls", show: perStep, title: "per step" }, ({ calls }) => calls / Math.max(1, shown.diagnosis.steps.length)],
    [{ head: "size", show: size, title: "bytes of one call, mean" }, ({ mean_bytes }) => mean_bytes],
    [{ head: "straggler wait", quantity: "straggler wait of a call", show: time, title: "of one call, mean over its ranks" }, ({ mean_wait_us }) => mean_wait_us],
    [{ head: "time", quantity: "time of a call", show: time, bar: true, title: "of one call without straggler wait, mean" }, ({ mean_transfer_us }) => mean_transfer_us],
    [
      { head: "algbw, GB/s", show: plain, title: "size / time, as in nccl-tests" },
      ({ mean_bytes, mean_transfer_us }) => (mean_bytes && mean_transfer_us > 0 ? mean_bytes / mean_transfer_us / 1e3 : null),
    ],
    [
      { head: "busbw, GB/s", show: plain, title: "algbw × the factor of nccl-tests" },
      ({ mean_bytes, mean_transfer_us, bus_factor }) => (mean_bytes && mean_transfer_us > 0 ? (mean_bytes / mean_transfer_us / 1e3) * bus_factor : null),
    ],
    [{ head: "latency", show: time, title: "of the fit: the time at size 0 (alpha)" }, ({ significant, alpha_us }) => (significant ? alpha_us : null)],
    [
      { head: "busbw at large size, GB/s", show: plain, title: "from 1 / beta of the fit; only where sizes differ enough for a fit" },
      ({ significant, us_per_byte, bus_factor }) => (significant && us_per_byte ? (bus_factor / us_per_byte) * 1e-3 : null),
    ],
    [{ head: "outliers", title: "calls that take much longer than others of their size" }, ({ far }) => far],
  ];
  if (families.some(knowsLinks)) {
    const title = "what the links could do: as a calibration measured it for such groups, or between GPUs of a node by the table of devices";
    columns.push([{ head: "possible busbw, GB/s", show: plain, title }, ({ possible_bus_rate }) => (possible_bus_rate ? possible_bus_rate / 1e9 : null)]);
  }
  const { network } = shown.diagnosis;
  if (network?.choices.length) {
    columns.push([{ head: "NCCL chose", title: "algorithm, protocol and channels, by NCCL's log or the trace" }, (family) => chosen(network, family)]);
  }
  if (compared) {
    const title = "time without straggler wait over the median of comparable groups, at the same size";
    columns.push([{ head: "vs comparable groups", show: times, title }, ({ slowdown }) => slowdown]);
  }
  const rows = families.map((family) => columns.map(([, value]) => value(family)));
  const slow = new Set(rows.filter((_, i) => families[i].is_slow));
  return grid({
    title: "communication",
    shown,
    sort: 6,
    marked: (row) => slow.has(row),
    columns: columns.map(([column]) => column),
    rows,
  });
}

/** @param {Family} family */
const knowsLinks = ({ possible_bus_rate }) => possible_bus_rate !== null;

/**
 * How to know what the links could do, where nothing says it.
 * @param {Family[]} families
 */
export function unknownLinks(families) {
  if (families.some(knowsLinks)) return null;
  return h("p", { class: "note" }, "What these links could do is not known. This measures it, on the same nodes, for the next diagnosis: ", h("code", {}, "torchrun … -m tb_ddp_doctor.check"));
}

/**
 * @param {Node[]} nodes
 * @param {Shown} shown
 */
export function byNode(nodes, shown) {
  const compared = nodes.some(({ slowdown }) => slowdown !== null);
  const out = nodes.filter(({ stands_out }) => stands_out).map(({ name }) => name);
  const names = new Set(out);
  return [
    h(
      "p",
      { class: "note" },
      out.length
        ? `${named(out)} ${out.length === 1 ? "stands" : "stand"} out: all its ranks are late and other nodes wait for them, or its communication without wait is slower than that of comparable groups.`
        : "No node stands out: on each node some rank is on time, and communication without wait is comparable.",
    ),
    grid({
      title: "nodes",
      shown,
      search: "Filter",
      sort: 4,
      marked: ([name]) => names.has(String(name)),
      columns: [
        { head: "node" },
        { head: "ranks" },
        { head: "calls", show: perStep, title: "collectives per step that its ranks take part in" },
        { head: "arrives last", show: percent, title: "share of its collectives in which other nodes wait for one of its ranks" },
        { head: "wait caused", unit: "ms", show: ms, bar: true, title: "straggler wait of the other nodes for this one, per step, mean over their ranks" },
        { head: "straggler wait", unit: "ms", show: ms, bar: true, title: "per step, mean over its ranks" },
        ...(compared ? [{ head: "vs comparable groups", show: times, title: "time without straggler wait over the median of comparable groups" }] : []),
      ],
      rows: nodes.map(({ name, ranks: some, calls, last, waited_for_ms, waits_ms, slowdown }) => [
        name,
        briefly(some),
        calls,
        last,
        waited_for_ms,
        waits_ms,
        ...(compared ? [slowdown] : []),
      ]),
    }),
  ];
}

/**
 * @param {Family[]} families
 * @param {Shown} shown
 */
export function calls(families, shown) {
  return grid({
    title: "collectives",
    shown,
    search: "Filter",
    sort: 5,
    columns: [
      { head: "collective" },
      { head: "nodes" },
      { head: "step" },
      { head: "size", show: size },
      { head: "straggler wait", quantity: "straggler wait of a call", show: time, title: "mean over its ranks" },
      { head: "time", quantity: "time of a call", show: time, bar: true, title: "without straggler wait" },
      { head: "busbw, GB/s", show: plain },
      { head: "outlier" },
    ],
    rows: families.flatMap((family) => {
      const [kind, nodes] = [kindOf(family), named(family.nodes)];
      return family.transfer_us.flatMap((us, i) => (shown.place.step && String(family.step[i]) !== shown.place.step ? [] : [[
        kind,
        nodes,
        family.step[i],
        family.bytes[i] > 0 ? family.bytes[i] : null,
        family.wait_us[i],
        us,
        family.bytes[i] > 0 && us > 0 ? (family.bytes[i] / us / 1e3) * family.bus_factor : null,
        family.outlier[i] ? "outlier" : "",
      ]]));
    }),
  });
}
