// The account of the step: one bar whose parts sum to it, and below it the critical path of a step, each as wide as the card.

import { h, prose } from "../dom.js";
import { among, decimals, ms, percent, ranges, rounded, sumDigits } from "../format.js";
import { line, numberOf, ownerName, ownerOf } from "../model.js";
import { PHASES } from "../step_parts.js";
import { ticks } from "../timeline/scale.js";
import { tip } from "../tips.js";
import { badge } from "./badge.js";
import { openedFloor } from "./floor.js";
import { byOwner, byRank, lengthOf, phases, stepToShow, stretches } from "./path.js";

/** @typedef {import("../model.js").AccountLine} AccountLine */
/** @typedef {import("../model.js").Diagnosis} Diagnosis */
/** @typedef {import("../model.js").PathStep} PathStep */
/** @typedef {import("../views.js").Shown} Shown */

/** Of a smaller share of the step it is not said where it lies. */
const LEAST_PLACED = 0.01;
/** Smaller parts of the step are in the list only. */
const LEAST_DRAWN = 0.001;
/** Lines that are called otherwise than their kind. */
const NAMES = new Map([["no-requests", "no requests"]]);
/** Ticks of the axis: about so many. */
const TICKS = 9;
/** Behind this share of the width a number would not fit. */
const LAST_TICK = 0.92;

/** @param {Shown} shown */
export function account(shown) {
  const { diagnosis } = shown;
  if (!(diagnosis.step_ms > 0)) return null;
  const path = diagnosis.critical_path ?? [];
  const lines = inOrder(diagnosis);
  return h(
    "section",
    { class: "card account-card textured", "data-quantity": "account" },
    h("div", { class: "head" }, h("h2", {}, "Account of the step ", tip("account")), h("p", { class: "sum" }, sum(lines, diagnosis.step_ms))),
    bar(shown, lines),
    h("ul", { class: "account" }, lines.map((one) => item(shown, one))),
    openedFloor(shown),
    notes(diagnosis).map((note) => h("p", { class: "note" }, prose(note))),
    path.length ? criticalPath(shown, path) : null,
  );
}

/**
 * The floor and tracing, a server's time without requests, the findings by number, and what is unexplained.
 * @param {Diagnosis} diagnosis
 */
function inOrder(diagnosis) {
  const { lines } = diagnosis.account;
  const findings = lines.filter(({ kind }) => kind === "finding");
  findings.sort((a, b) => numberOf(diagnosis, a.finding) - numberOf(diagnosis, b.finding));
  const tracing = line(diagnosis, "tracing");
  const idle = lines.filter(({ kind }) => kind === "no-requests");
  return [line(diagnosis, "floor"), ...(tracing.ms > 0 ? [tracing] : []), ...idle, ...findings, line(diagnosis, "unexplained")];
}

/**
 * "182.9 = 49.2 floor + 5.5 tracing + 125.2 findings + 3.0 unexplained (ms)".
 * @param {AccountLine[]} lines
 * @param {number} step ms
 */
function sum(lines, step) {
  const digits = sumDigits(step);
  const parts = ["floor", "tracing", "no-requests", "finding", "unexplained"].flatMap((kind) => {
    const some = lines.filter((one) => one.kind === kind);
    const total = some.reduce((all, one) => all + rounded(one.ms, digits), 0);
    if (kind === "tracing" && !(total > 0)) return [];
    const name = kind === "finding" ? (some.length > 1 ? "findings" : "finding") : (NAMES.get(kind) ?? kind);
    return some.length ? [`${decimals(total, digits)}\u00a0${name}`] : [];
  });
  return `${decimals(step, digits)} = ${parts.join(" + ")} (ms)`;
}

/**
 * @param {Shown} shown
 * @param {AccountLine[]} lines
 */
function bar({ diagnosis }, lines) {
  const drawn = lines.filter(({ share }) => share >= LEAST_DRAWN);
  const label = drawn.map((one) => `${nameOf(one)} ${ms(one.ms)}`).join(", ");
  return h(
    "div",
    { class: "account-bar", role: "img", "aria-label": label },
    drawn.map((one) => {
      const number = numberOf(diagnosis, one.finding);
      return h(
        "div",
        { class: `part ${colourOf(diagnosis, one)}`, style: `flex: ${one.ms} 1 0`, title: `${nameOf(one)}: ${ms(one.ms)}, ${percent(one.share)}` },
        h("span", { class: "plate" }, number > 0 && badge(number), h("b", {}, ms(one.ms))),
      );
    }),
  );
}

/**
 * @param {Shown} shown
 * @param {AccountLine} one
 */
function item({ diagnosis, link }, one) {
  const number = numberOf(diagnosis, one.finding);
  const to = number > 0 ? link("findings", { finding: one.finding ?? "" }) : h("span");
  to.append(nameOf(one));
  return h(
    "li",
    {},
    h("i", { class: colourOf(diagnosis, one) }),
    number > 0 && badge(number),
    h("b", { class: "cost" }, ms(one.ms)),
    h("span", { class: "title" }, to),
    h("small", {}, percent(one.share)),
  );
}

/** @param {AccountLine} line */
const nameOf = ({ kind, finding }) => (kind === "finding" ? (finding ?? "") : (NAMES.get(kind) ?? kind));

/**
 * The class that colours a part of the step: a finding has the colour of the owner that its fix removes; what is
 * unexplained has one only where it is the verdict.
 * @param {Diagnosis} diagnosis
 * @param {AccountLine} line
 */
function colourOf(diagnosis, { kind, finding }) {
  if (kind === "unexplained") return diagnosis.verdict === "unexplained" ? `unexplained ${diagnosis.level}` : "unexplained";
  if (kind !== "finding") return kind;
  const found = diagnosis.findings.find(({ id }) => id === finding);
  const owner = found && ownerOf(found);
  return owner ? `owner-${owner}` : "other";
}

/** @param {Diagnosis} diagnosis */
function notes(diagnosis) {
  const { account: of, ranks, steps } = diagnosis;
  const { unexplained } = of;
  const { ms: length, share } = line(diagnosis, "unexplained");
  const said = [];
  if (unexplained && share >= LEAST_PLACED) {
    const phase = PHASES.get(unexplained.phase ?? "");
    const within = phase && unexplained.phase !== "other" ? ` in ${phase.name}` : "";
    said.push(`Unexplained, ${ms(length)}: mostly ${ownerName(unexplained.owner)}${within}, ${among(unexplained.ranks, ranks, "rank")}, ${among(unexplained.steps, steps, "step")}.`);
  }
  if (of.no_replay) said.push(`Costs come from busy times. ${of.no_replay}`);
  for (const { step, ms: missed, reason } of of.left_out) said.push(`Not counted: step ${step} (${ms(missed)}): ${reason.replace(/\.$/, "")}.`);
  return said;
}

/**
 * @param {Shown} shown
 * @param {PathStep[]} path
 */
function criticalPath(shown, path) {
  const { place, keep } = shown;
  const element = h("div", { class: "critical-path" });
  const show = (/** @type {PathStep} */ step) => element.replaceChildren(...pathOf(shown, path, step, choose));
  const choose = (/** @type {number} */ step) => {
    keep({ step: String(step) });
    show(stepToShow(path, step));
    element.querySelector("select")?.focus();
  };
  show(stepToShow(path, place.step ? Number(place.step) : null));
  return element;
}

/**
 * @param {Shown} shown
 * @param {PathStep[]} path
 * @param {PathStep} step
 * @param {(step: number) => void} choose
 */
function pathOf(shown, path, step, choose) {
  const length = lengthOf(step);
  const { marked, readout } = strip(step);
  const chooser = /** @type {HTMLSelectElement} */ (
    h(
      "select",
      { "aria-label": "Step of the critical path", change: () => choose(Number(chooser.value)) },
      path.map((one) => h("option", { value: one.step, selected: one === step }, `step ${one.step}`)),
    )
  );
  return [
    h(
      "div",
      { class: "head" },
      h("h3", {}, "Critical path of ", path.length > 1 ? chooser : `step ${step.step}`, ` ${ms(length)} `, tip("critical path")),
      h("p", { class: "sum" }, whose(step), timelineLink(shown, step)),
    ),
    ...marked,
    axis(length),
    h(
      "div",
      { class: "below-strip" },
      h("ul", { class: "legend" }, byOwner(step).map(({ key, ms: long }) => h("li", {}, h("i", { class: `owner-${key}` }), `${ownerName(key)} ${ms(long)}`))),
      readout,
    ),
  ];
}

/** @param {number} full ms of the whole width */
function axis(full) {
  const named = ticks({ from: 0, to: full * LAST_TICK }, 1, 1 / TICKS);
  return h("div", { class: "axis", "aria-hidden": "true" }, named.map((at) => h("span", { style: `left: ${(100 * at) / full}%` }, at ? at.toLocaleString("en", { maximumSignificantDigits: 6 }) : "0\u00a0ms")));
}

/**
 * On which ranks the path lies: "150.3 ms on rank 5, 34.4 ms on ranks 0 and 1".
 * @param {PathStep} step
 */
function whose(step) {
  const [first, ...rest] = byRank(step);
  if (!first) return "";
  if (!rest.length) return `all on rank ${first.key}`;
  const others = rest.map(({ key }) => key).sort((a, b) => a - b);
  const who = others.length > 4 ? `${others.length} other ranks` : `rank${others.length > 1 ? "s" : ""} ${ranges(others)}`;
  return `${ms(first.ms)} on rank ${first.key}, ${ms(rest.reduce((sum, one) => sum + one.ms, 0))} on ${who}`;
}

/**
 * @param {Shown} shown
 * @param {PathStep} step
 */
function timelineLink({ views, link }, step) {
  if (!views || views.from_digests) return null;
  const [from, to] = [step.start_ns, step.end_ns].map((at) => String(Math.round((at - Number(views.origin_ns)) / 1000)));
  const ranks = byRank(step).slice(0, 8).map(({ key }) => key).sort((a, b) => a - b).join(",");
  const anchor = link("timeline", { from, to, ranks });
  anchor.textContent = "Open in timeline";
  return h("span", {}, " · ", anchor);
}

/**
 * The strip, its phases, and what stands under the pointer or the arrow keys.
 * @param {PathStep} step
 */
function strip(step) {
  const drawn = stretches(step);
  const length = lengthOf(step);
  const readout = h("p", { class: "readout", role: "status" }, "");
  let at = -1;
  /** @param {number} index */
  const point = (index) => {
    cells[at]?.classList.remove("chosen");
    at = Math.max(0, Math.min(drawn.length - 1, index));
    cells[at].classList.add("chosen");
    readout.textContent = said(drawn[at]);
  };
  const cells = drawn.map(({ owner, start, end }) => h("span", { class: `owner-${owner}`, style: `flex: ${end - start} 1 0` }));
  const move = { ArrowRight: 1, ArrowLeft: -1 };
  const element = h(
    "div",
    {
      class: "strip",
      tabindex: 0,
      role: "group",
      "aria-label": `Critical path of step ${step.step}, ${ms(length)}: ${byOwner(step).map(({ key, ms: long }) => `${ownerName(key)} ${ms(long)}`).join(", ")}. Left and right arrow keys read out its ${drawn.length} pieces.`,
      pointermove: (/** @type {PointerEvent} */ { target }) => cells.includes(/** @type {HTMLElement} */ (target)) && point(cells.indexOf(/** @type {HTMLElement} */ (target))),
      keydown: (/** @type {KeyboardEvent} */ event) => {
        const by = move[/** @type {keyof typeof move} */ (event.key)];
        if (!by) return;
        event.preventDefault();
        point(at + by);
      },
    },
    cells,
  );
  const named = phases(step);
  const marks = h("div", { class: "phases", "aria-hidden": "true" }, named.map(({ name, start, end }) => h("span", { style: `left: ${(100 * start) / length}%; width: ${(100 * (end - start)) / length}%`, title: name }, h("b", {}, name))));
  return { marked: named.length ? [element, marks] : [element], readout };
}

/** @param {import("./path.js").Stretch} stretch */
function said({ start, end, owner, rank, phase, what, pieces }) {
  const within = PHASES.get(phase ?? "")?.name;
  const parts = [`rank ${rank}: ${ownerName(owner)}${what ? ` (${what})` : ""}`, phase !== "other" && within, `${ms(end - start)} from ${ms(start)}`, pieces > 1 && `${pieces} pieces`];
  return parts.filter(Boolean).join(", ");
}
