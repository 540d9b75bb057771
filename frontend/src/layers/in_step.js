// Where in a step a module's kernels lie: of one rank, in one step, forward, backward and communication.

import { fetchSlice, isReport } from "../api.js";
import { h } from "../dom.js";
import { ms } from "../format.js";

/** @typedef {import("../timeline/rows.js").Slice} Slice */
/** @typedef {"forward" | "backward" | "communication"} Part */
/** @typedef {{part: Part, from: number, to: number}} Span shares of the step */

/** Kernels of one part that are closer than this share of the step are one span. */
const APART = 1 / 400;
/** Launches come before the step's kernels: so much of a step before it is asked for, too. */
const BEFORE = 0.5;
/** The owner whose colour each part has, as in the picture of modules. @type {[Part, string][]} */
const COLOURS = [["forward", "compute"], ["backward", "input"], ["communication", "transfer"]];

/** The slice that was asked for last: the next module is mostly of the same rank and step. @type {{key: string, slice: Promise<Slice>} | null} */
let last = null;

/**
 * When kernels of a module run in a step, with all modules within it, in order of time; pure.
 * A kernel that autograd's thread launches is of backward.
 * @param {Slice} slice of one rank
 * @param {string} path
 * @param {number} start of the step, µs after the slice's
 * @param {number} length µs
 * @returns {Span[]}
 */
export function spansOf({ owners, ranks: [rank] }, path, start, length) {
  if (!rank) return [];
  const within = rank.modules.map((one) => one === path || one.startsWith(`${path}.`));
  const backward = new Set(rank.lanes.filter(({ role }) => role === "autograd").flatMap(({ launch }) => launch.filter((one) => one >= 0)));
  const communication = owners.indexOf("communication");
  /** @type {Map<Part, Span[]>} */
  const spans = new Map(COLOURS.map(([part]) => [part, []]));
  for (const lane of rank.lanes.filter(({ role }) => role === "stream")) {
    lane.module.forEach((module, i) => {
      const from = (lane.start_us[i] - start) / length;
      const to = from + lane.length_us[i] / length;
      if (!within[module] || to <= 0 || from >= 1) return;
      /** @type {Part} */
      const part = lane.owner[i] === communication ? "communication" : backward.has(lane.launch[i]) ? "backward" : "forward";
      spans.get(part)?.push({ part, from: Math.max(from, 0), to: Math.min(to, 1) });
    });
  }
  return [...spans.values()].flatMap(joined).sort((a, b) => a.from - b.from);
}

/** @param {Span[]} spans of one part */
function joined(spans) {
  /** @type {Span[]} */
  const made = [];
  for (const span of spans.sort((a, b) => a.from - b.from)) {
    const before = made.at(-1);
    if (before && span.from - before.to < APART) before.to = Math.max(before.to, span.to);
    else made.push({ ...span });
  }
  return made;
}

/**
 * The picture, which appears when the server has answered; null where there are no traces to ask for.
 * @param {string} path of the module
 * @param {number} rank its number; NaN for whichever
 * @param {import("../views.js").Shown} shown
 */
export function inStep(path, rank, { views, diagnosis }) {
  if (!path || !views || views.from_digests || isReport) return null;
  const row = Math.max(views.ranks.indexOf(rank), 0);
  const column = views.steps.length >> 1;
  const [start_ms, length_ms] = [views.clock_ms[row]?.[column], views.step_ms[row]?.[column]];
  if (start_ms === null || start_ms === undefined || !length_ms) return null;
  const place = h("div", { hidden: true });
  const from = BigInt(views.origin_ns) + BigInt(Math.floor((start_ms - BEFORE * length_ms) * 1e6));
  const to = BigInt(views.origin_ns) + BigInt(Math.ceil((start_ms + length_ms) * 1e6));
  asked(diagnosis.name, views.ranks[row], from, to).then(
    (slice) => {
      // A slice may begin later or earlier than was asked for.
      const start_us = start_ms * 1000 - Number(BigInt(slice.start_ns) - BigInt(views.origin_ns)) / 1000;
      const spans = spansOf(slice, path, start_us, length_ms * 1000);
      if (!spans.length) return;
      place.replaceChildren(...drawn(spans, length_ms, `Rank ${views.ranks[row]}, step ${views.steps[column]}`));
      place.hidden = false;
    },
    () => {},
  );
  return place;
}

/**
 * @param {string} run
 * @param {number} rank
 * @param {bigint} from ns
 * @param {bigint} to
 */
function asked(run, rank, from, to) {
  const key = `${rank} ${from} ${to} ${run}`;
  if (last?.key !== key) last = { key, slice: fetchSlice(run, [rank], String(from), String(to), new AbortController().signal) };
  return last.slice;
}

/**
 * @param {Span[]} spans
 * @param {number} length_ms
 * @param {string} where
 */
function drawn(spans, length_ms, where) {
  const isCommunication = (/** @type {Span} */ { part }) => part === "communication";
  const hasBoth = spans.some(isCommunication) && !spans.every(isCommunication);
  const track = (/** @type {Span[]} */ some) =>
    some.length
      ? h(
          "div",
          { class: "step-track" },
          some.map(({ part, from, to }) => h("i", { class: `owner-${COLOURS.find(([name]) => name === part)?.[1]}`, style: `left: ${100 * from}%; width: ${100 * (to - from)}%` })),
        )
      : null;
  const times = spans.map(({ part, from, to }) => `${part} from ${ms(from * length_ms)} to ${ms(to * length_ms)}`);
  return [
    h("h3", {}, "In the step"),
    h("div", { role: "img", "aria-label": `${where}: ${times.slice(0, 12).join("; ")}${times.length > 12 ? `; ${times.length - 12} more` : ""}` }, track(spans.filter((span) => !isCommunication(span))), track(spans.filter(isCommunication))),
    h("p", { class: "step-axis", "data-quantity": "step time" }, h("span", {}, "0"), h("span", {}, ms(length_ms))),
    h("p", { class: "note" }, `${where}, with all modules within it${hasBoth ? "; below: its communication" : ""}.`),
  ];
}
