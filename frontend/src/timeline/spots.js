// The places that a timeline opens on: each piece of evidence, or the longest step. Pure.

import { evidenceId } from "../model.js";
import { usAfter } from "./rows.js";

/** @typedef {import("./scale.js").Span} Span */
/** @typedef {{id: string, ranks: number[], seen: Span, title: string}} Spot a place worth looking at: ranks, the most important first; us after the origin */

/** Which place the address names: the whole span of a shared link. @param {import("../address.js").Place} place */
export function spanOf({ from, to }) {
  const span = { from: Number(from), to: Number(to) };
  return from && to && span.to > span.from ? span : null;
}

/** Which range is selected in a link: "FROM,TO". @param {import("../address.js").Place} place */
export function rangeOf({ range }) {
  const [from, to] = (range ?? "").split(",").map(Number);
  return to > from ? { from, to } : null;
}

/**
 * Every piece of evidence; without any, the step with the longest busy time.
 * @param {import("../views.js").Shown} shown
 * @returns {Spot[]}
 */
export function spotsOf({ diagnosis, views }) {
  const { origin_ns, ranks, steps, busy_ms, step_ms, clock_ms } = /** @type {import("../model.js").Views} */ (views);
  const found = diagnosis.findings.flatMap((finding) =>
    finding.evidence.flatMap(({ rank, step, window }, item) => {
      if (!window) return [];
      const [from, to] = window.seen.map((ns) => usAfter(ns, origin_ns));
      const accused = finding.ranks.length < ranks.length ? finding.ranks : [];
      const first = accused.includes(rank) || !accused.length ? [rank] : [accused[0], rank];
      return [{ id: evidenceId(finding, item), ranks: first, seen: { from, to }, title: `${finding.rule}: rank ${rank}, step ${step}` }];
    }),
  );
  if (found.length) return found;
  const all = busy_ms.map((row, i) => ({ i, most: Math.max(...row.map((value) => value ?? 0)) }));
  const slowest = all.reduce((a, b) => (b.most > a.most ? b : a));
  const step = busy_ms[slowest.i].indexOf(slowest.most);
  const from = (clock_ms[slowest.i][step] ?? 0) * 1000;
  return [
    {
      id: "",
      ranks: [ranks[slowest.i]],
      seen: { from, to: from + (step_ms[slowest.i][step] ?? 0) * 1000 },
      title: `the longest step: rank ${ranks[slowest.i]}, step ${steps[step]}`,
    },
  ];
}
