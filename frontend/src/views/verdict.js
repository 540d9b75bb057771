// The first five seconds: is it healthy, what is the biggest loss, who causes it, what is a fix worth.

import { cut, kindsOf } from "../cuts.js";
import { card, h, prose } from "../dom.js";
import { among, count, interval, ms, percent } from "../format.js";
import { account, faults, affectedRanks, line, lostMs, ownerName } from "../model.js";

/** @typedef {import("../model.js").Diagnosis} Diagnosis */
/** @typedef {import("../views.js").View} View */
/** @typedef {import("../views.js").Shown} Shown */

/** More of them stand in the view of their own. */
const MOST_FINDINGS = 5;
const MOST_BARS = 3;
/** Of a smaller share of the step it is not said where it lies. */
const LEAST_PLACED = 0.01;

/** @type {View} */
export const verdict = {
  title: "Verdict",
  fragment: "verdict",
  render(element, shown) {
    const { diagnosis } = shown;
    const parts = [h("p", { class: "why" }, why(shown)), tiles(shown), worth(shown), costliest(shown), whole(shown), where(shown)];
    element.append(...parts.filter((part) => part !== null));
  },
  table: (shown) => ({ heads: ["number", "value", "basis"], rows: facts(shown) }),
};

/** @param {Shown} shown */
function why({ diagnosis, link }) {
  const { verdict, outcomes } = diagnosis;
  const [worst] = faults(diagnosis);
  if (worst && verdict === worst.rule) return prose(worst.why);
  const ended = (/** @type {string} */ how) => outcomes.filter(({ status }) => status === how).length;
  const [passed, found] = [ended("clear"), ended("finding")];
  const blind = outcomes.length - passed - found;
  const parts = [`${passed} of ${count(outcomes.length, "check")} passed`, found && `${found} with findings`];
  const told = parts.filter(Boolean).join(", ");
  if (!blind) return [`${told}.`];
  const reasons = link("quality");
  reasons.textContent = "why";
  return [`${told}, ${blind} not checked (the traces lack data): `, reasons, "."];
}

/**
 * The few numbers that tell what is at stake: name, value, and what it rests on.
 * @param {Shown} shown
 * @returns {[string, string, string][]}
 */
function facts({ diagnosis, views }) {
  const { step_ms: step, world_size, verdict } = diagnosis;
  const lost = lostMs(diagnosis);
  const [worst] = faults(diagnosis);
  const unexplained = line(diagnosis, "unexplained");
  const processors = count(world_size, views?.device ? "GPU" : "rank");
  const hours = step > 0 ? (world_size * 24 * lost) / step : 0;
  /** @type {[string, string, string]} */
  const seen = ["Ranks seen", `${diagnosis.ranks.length} of ${world_size}`, "ranks with a readable trace"];
  /** @type {[string, string, string]} */
  const now = ["Step now", ms(step), `mean of ${count(diagnosis.steps.length, "step")}`];
  /** @type {[string, string, string]} */
  const fixed = ["Step with the fixes", ms(step - lost), lost ? `predicted, ${percent(lost / step)} less` : "nothing to fix"];
  if (verdict === "unknown") return [now, seen];
  if (verdict === "unexplained")
    return [now, ["Unexplained", ms(unexplained.ms), `${percent(unexplained.share)} of the step`], fixed, seen];
  /** @type {[string, string, string][]} */
  const sure = worst ? [["Confidence", worst.confidence, "of the costliest finding"]] : [];
  const hoursName = `${views?.device ? "GPU" : "Rank"}-hours lost a day`;
  if (!standsForAll(diagnosis)) return [now, fixed, [hoursName, "unknown", `${diagnosis.ranks.length} of ${count(world_size, "rank")} recorded`], ...sure];
  const shown = hours.toLocaleString("en", { maximumFractionDigits: hours < 10 ? 1 : 0 });
  const of = `of ${(world_size * 24).toLocaleString("en")}, with ${processors}`;
  return [now, fixed, [hoursName, shown, of], ...(worst ? sure : [seen])];
}

/**
 * Whether the loss of the recorded ranks may be scaled to the whole job: not from few of them, and no loss only where
 * all were recorded.
 * @param {Diagnosis} diagnosis
 */
const standsForAll = (diagnosis) => {
  const { ranks, world_size } = diagnosis;
  if (ranks.length === world_size) return true;
  return ranks.length > 1 && 2 * ranks.length >= world_size && lostMs(diagnosis) > 0;
};

/** @param {Shown} shown */
function tiles(shown) {
  return h(
    "dl",
    { class: "tiles" },
    facts(shown).map(([name, value, rest]) => h("div", {}, h("dt", {}, name), h("dd", {}, h("b", {}, value), h("small", {}, rest)))),
  );
}

/** @param {Shown} shown */
function costliest({ diagnosis, link }) {
  const all = faults(diagnosis);
  if (!all.length) return null;
  const rows = all.slice(0, MOST_FINDINGS).map((finding) => {
    const to = link("findings", { finding: finding.id });
    to.append(...prose(finding.title));
    return h(
      "li",
      { class: finding.severity },
      h("span", { class: "severity" }, finding.severity[0].toUpperCase() + finding.severity.slice(1)),
      h("span", { class: "title" }, to, h("small", {}, among(finding.ranks, diagnosis.ranks, "rank"))),
      h("span", { class: "cost" }, ms(finding.cost_ms), h("small", { title: interval(...finding.range_ms) }, `${percent(finding.cost_ms / diagnosis.step_ms)} of the step`)),
    );
  });
  const more = link("findings");
  more.textContent = `All ${count(diagnosis.findings.length, "finding")}`;
  return card("What costs most", h("ul", { class: "costliest" }, rows), h("p", { class: "more" }, more));
}

/**
 * Whose step goes where, in a few bars: the affected ranks, and the median one of the others.
 * @param {Shown} shown
 */
function where(shown) {
  const { diagnosis, link } = shown;
  const [kind] = kindsOf(diagnosis);
  const rows = cut(shown, kind);
  const affected = affectedRanks(diagnosis);
  const named = rows.filter(({ ranks }) => affected.has(ranks[0])).sort((a, b) => b.busy - a.busy);
  const others = rows.filter(({ ranks }) => !affected.has(ranks[0])).sort((a, b) => a.busy - b.busy);
  const middle = others[Math.floor((others.length - 1) / 2)];
  const chosen = [...named.slice(0, MOST_BARS), ...(middle ? [middle] : [])];
  if (!chosen.length) return null;
  const longest = Math.max(...chosen.map(({ total }) => total));
  const parts = kind.parts.map((part, i) => ({ ...part, i })).filter(({ i }) => chosen.some(({ values, total }) => values[i] > total / 200));
  const more = link("budget");
  more.textContent = rows.length > 1 ? `All ${count(rows.length, "rank")}` : "Budget of this rank";
  return card(
    named.length ? "Budget of the affected ranks" : "Budget of one rank",
    chosen.map((row) =>
      h(
        "div",
        { class: `row${row === middle ? "" : " affected"}` },
        h("span", { class: "rank" }, row.name, h("small", {}, row === middle && others.length > 1 ? "median rank" : row.node)),
        h(
          "div",
          {
            class: "bar",
            style: `width: ${(100 * row.total) / longest}%`,
            role: "img",
            "aria-label": parts.map(({ name, i }) => `${name} ${ms(row.values[i])}`).join(", "),
          },
          parts.map(({ colour, i }) =>
            h("span", { class: `part owner-${colour}`, style: `flex: ${row.values[i]} 1 0` }, row.values[i] > longest / 20 && h("span", {}, row.values[i].toFixed(1))),
          ),
        ),
        h("span", { class: "total" }, ms(row.total)),
      ),
    ),
    h("ul", { class: "legend" }, parts.map(({ name, when, colour }) => h("li", { title: when }, h("i", { class: `owner-${colour}` }), name))),
    h("p", { class: "more" }, more),
  );
}

/**
 * The whole step as the account has it: what stays with the fixes, and what each fix saves.
 * @param {Shown} shown
 */
function worth({ diagnosis }) {
  const { step_ms: step, findings } = diagnosis;
  const lost = lostMs(diagnosis);
  const left = step - lost;
  if (!(step > 0)) return null;
  const { kept, saved } = account(diagnosis);
  const part = (/** @type {import("../model.js").AccountLine} */ one, /** @type {boolean} */ goes) => {
    const finding = findings.find(({ id }) => id === one.finding);
    const name = nameOf(one);
    const title = `${ms(one.ms)} ${name}${finding ? `: ${finding.title}` : ""}`;
    const colour = colourOf(diagnosis, one);
    const width = `flex: ${one.ms} 1 0`;
    return h("div", { class: colour, style: width, title }, h("span", {}, ms(one.ms), h("i", {}, ` ${goes ? "lost" : name}`)));
  };
  const shown = (/** @type {import("../model.js").AccountLine[]} */ lines) => lines.filter(({ share }) => share >= 0.001);
  return h(
    "div",
    { class: "worth" },
    h("div", { class: "track" }, shown(kept).map((one) => part(one, false)), shown(saved).map((one) => part(one, true))),
    h(
      "div",
      { class: "scale" },
      h("span", {}, "0"),
      lost > 0 &&
        h(
          "span",
          {},
          `Predicted with the fixes: ${ms(left)}, ${percent(lost / step)} less time a step`,
          left > 0 ? `, ${(step / left).toFixed(step / left < 1.95 ? 2 : 1)}× as fast` : "",
        ),
      h("span", {}, lost ? `${ms(step)} now` : ms(step)),
    ),
  );
}

/** @param {import("../model.js").AccountLine} line */
const nameOf = ({ kind, finding }) => (kind === "finding" ? (finding ?? "") : kind);

/**
 * The class that colours a part of the step; what nothing explains has a colour only where it is the verdict.
 * @param {Diagnosis} diagnosis
 * @param {import("../model.js").AccountLine} line
 */
function colourOf(diagnosis, { kind, finding }) {
  const shownAs = diagnosis.level;
  if (kind === "floor") return shownAs === "info" ? "kept info" : "kept";
  if (kind === "unexplained") return diagnosis.verdict === "unexplained" ? `${shownAs} unexplained` : "unexplained";
  const id = kind === "tracing" ? "profiler-overhead" : finding;
  const severity = diagnosis.findings.find((one) => one.id === id)?.severity ?? "info";
  return severity === "info" ? "small" : severity;
}

/**
 * The account, line by line: step = floor + tracing + findings + unexplained.
 * @param {Shown} shown
 */
function whole({ diagnosis, link }) {
  const { account: of, findings, ranks, steps } = diagnosis;
  if (!(diagnosis.step_ms > 0)) return null;
  // Those have their sentence above.
  const listed = new Set(faults(diagnosis).slice(0, MOST_FINDINGS).map(({ id }) => id));
  const rows = of.lines.map((one) => {
    const finding = findings.find(({ id }) => id === one.finding);
    const to = finding && link("findings", { finding: finding.id });
    to?.append(nameOf(one));
    return h(
      "li",
      {},
      h("i", { class: colourOf(diagnosis, one) }),
      h("span", { class: "title" }, to ?? h("b", {}, nameOf(one)), h("small", {}, prose(told(one)))),
      h("span", { class: "cost" }, ms(one.ms), h("small", {}, percent(one.share))),
    );
  });
  /** @param {import("../model.js").AccountLine} line */
  function told({ kind, finding, share }) {
    if (kind === "finding") return listed.has(finding ?? "") ? "" : (findings.find(({ id }) => id === finding)?.title ?? "");
    if (kind === "tracing") return "overhead of recording the trace";
    if (kind === "floor") return "the rest of the step, with whatever is equally slow on all ranks and in all steps (docs/method.md, “The account”)";
    const { unexplained } = of;
    if (!unexplained || share < LEAST_PLACED) return "no rule explains it";
    const { owner, phase } = unexplained;
    const within = phase && phase !== "other" ? ` in ${phase}` : "";
    return `no rule explains it: mostly ${ownerName(owner)}${within}, ${among(unexplained.ranks, ranks, "rank")}, ${among(unexplained.steps, steps, "step")}`;
  }
  const notes = [
    of.method === "busy_time" && "Costs are differences of busy time: the traces lack the data for a replay.",
    ...of.left_out.map(({ step, ms: length, reason }) => `Not counted: step ${step} (${ms(length)}): ${reason.replace(/\.$/, "")}.`),
  ];
  return card(
    "Where the step goes: floor + tracing + findings + unexplained",
    h("ul", { class: "account" }, rows),
    notes.map((note) => note && h("p", { class: "note" }, note)),
  );
}
