// The panel beside a timeline: all that is known of the chosen event, and the ways from it.

import { h } from "../dom.js";
import { decimals, ms } from "../format.js";
import { idleName } from "../model.js";
import { IDLE } from "../step_parts.js";
import { about, bandwidth, waiting } from "./about.js";
import { valuesAt } from "./curves.js";
import { said } from "./events.js";
import { plainName, shortName, written } from "./rows.js";

/** @typedef {import("./rows.js").Laid} Laid */
/** @typedef {import("./about.js").Call} Call */

/**
 * @typedef {object} Ways what the panel's buttons do
 * @property {() => void} zoom
 * @property {(name: string) => void} all seek all events of a name
 * @property {(rank: number) => void} open or fold a rank
 * @property {() => void} close
 */

/**
 * @param {Laid} laid
 * @param {import("./walk.js").Chosen} chosen
 * @param {import("./steps.js").Step | null} step
 * @param {Ways} ways
 * @param {boolean} gpu whether a GPU computes
 */
export function dock(laid, chosen, step, ways, gpu) {
  const row = laid.rows[chosen.row];
  const { index } = chosen;
  const [start, end] = [row.starts[index], row.ends[index]];
  const name = written(row, index, laid.joined);
  const full = plainName(row.names[row.name[index]]);
  const zero = step?.from ?? 0;
  const from = (/** @type {number} */ at) => ms((at - zero) / 1e3);
  const { waits, transfers, one } = waiting(laid, chosen.row, index);
  const known = about(laid, chosen.row, index);
  const speed = one && bandwidth(one);
  const gap = row.paint === "budget" && IDLE.has(row.owners[row.owner[index]]);
  const owned = said(row.paint, row.owners[row.owner[index]]);
  /** @type {[string, string][]} */
  const facts = [
    ...(one && waits > 0 ? [/** @type {[string, string]} */ ([`straggler wait for rank ${one.last_rank}`, ms(waits / 1e3)])] : []),
    ...(one ? [/** @type {[string, string]} */ (["communication without wait", ms(transfers / 1e3)]), /** @type {[string, string]} */ (["process group", `${one.group || "unknown"}, ${one.size} ranks`])] : []),
    ...(one && one.bytes > 0 ? [/** @type {[string, string]} */ (["size", size(one.bytes)])] : []),
    ...(speed ? [/** @type {[string, string]} */ (["algbw", rate(speed.algbw)]), /** @type {[string, string]} */ (["busbw", rate(speed.busbw)])] : []),
    [`from – to${step ? `, in step ${step.step}` : ""}`, `${from(start)} – ${from(end)}`],
    ...(row.module[index] >= 0 ? [/** @type {[string, string]} */ (["module", row.modules[row.module[index]]])] : []),
    ...valuesAt(laid.curves, row.rank, start),
    ...(owned && !one ? [/** @type {[string, string]} */ (["owner", owned])] : []),
  ];
  return h(
    "div",
    { class: "dock-body" },
    h("header", {}, h("h3", {}, gap && gpu ? `${idleName(gpu)}, ${name}` : name), h("button", { type: "button", class: "close", "aria-label": "Close the panel", click: ways.close }, "×")),
    full === name ? null : h("p", { class: "full-name" }, full),
    h("p", { class: "duration", title: "duration" }, ms((end - start) / 1e3)),
    h("p", { class: "note" }, `rank ${row.rank}, ${row.lane}`),
    one && waits > 0
      ? h("div", { class: "bar split", "aria-hidden": "true" }, h("span", { class: "part owner-wait", style: `flex: ${waits} 1 0` }), h("span", { class: "part owner-transfer", style: `flex: ${transfers} 1 0` }))
      : null,
    h("dl", {}, facts.flatMap(([what, value]) => [h("dt", {}, what), h("dd", {}, value)])),
    one && one.arrivals.length > 1 ? arrivals(one) : null,
    known.launch ? [h("h4", {}, "Launched by"), calls([...known.stack, known.launch], `${ms((start - known.launch.start) / 1e3)} before it starts, on ${known.launch.lane}`)] : null,
    gap ? [h("h4", {}, "Around the gap"), calls([known.before, known.after].filter((call) => call !== null), [known.before && "last op before", known.after && "first op after"].filter(Boolean).join("; ")), known.stack.length ? calls(known.stack, "the CPU, in its middle") : null] : null,
    row.paint === "host" && known.stack.length ? [h("h4", {}, "Within"), calls(known.stack, "")] : null,
    known.launched ? [h("h4", {}, "Launches"), calls([{ ...known.launched, lane: "" }], `${ms((known.launched.end - known.launched.start) / 1e3)}, starts ${ms((known.launched.start - start) / 1e3)} later`)] : null,
    h(
      "p",
      { class: "ways" },
      h("button", { type: "button", click: ways.zoom }, "Zoom to it"),
      h("button", { type: "button", click: () => ways.all(name) }, "Find all"),
      h("button", { type: "button", click: () => ways.open(row.rank) }, row.folded ? `Open rank ${row.rank}` : `Fold rank ${row.rank}`),
    ),
  );
}

/**
 * Calls, each within the one before.
 * @param {Call[]} list
 * @param {string} note
 */
function calls(list, note) {
  return h("div", { class: "calls" }, list.map(({ name }, depth) => h("code", { style: `padding-left: ${6 * Math.min(depth, 8)}px`, title: name }, shortName(name))), note && h("p", { class: "note" }, note));
}

/**
 * When each of the opened ranks arrives at a collective.
 * @param {import("./rows.js").Joined} one
 */
function arrivals({ arrivals: all, last, last_rank, transfer }) {
  const first = Math.min(...all.map(({ at }) => at));
  const full = Math.max(last + transfer, ...all.map(({ at }) => at)) - first || 1;
  const share = (/** @type {number} */ us) => `${decimals((100 * us) / full, 2)}%`;
  return h(
    "div",
    { class: "arrivals" },
    h("h4", {}, "Arrival per rank"),
    all.map(({ rank, at }) =>
      h(
        "div",
        { class: rank === last_rank ? "affected" : null, role: "img", "aria-label": `rank ${rank} arrives ${ms((at - first) / 1e3)} after the first` },
        h("span", {}, `rank ${rank}`),
        h("i", { class: "track" }, h("b", { class: "owner-wait", style: `left: ${share(at - first)}; width: ${share(Math.max(0, last - at))}` }), h("b", { class: "owner-transfer", style: `left: ${share(last - first)}; width: ${share(transfer)}` })),
      ),
    ),
    all.some(({ rank }) => rank === last_rank) ? null : h("p", { class: "note" }, `Rank ${last_rank} arrives last; it is folded.`),
  );
}

/** @param {number} bytes */
const size = (bytes) => (bytes >= 1e6 ? `${decimals(bytes / 1e6, 2)} MB` : bytes >= 1e3 ? `${decimals(bytes / 1e3, 1)} kB` : `${bytes} B`);

/** @param {number} gb_s */
const rate = (gb_s) => `${gb_s >= 100 ? decimals(gb_s, 0) : decimals(gb_s, 2)} GB/s`;
