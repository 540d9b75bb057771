// Findings, costliest first. Each opens to what was seen, what to do, and how sure the doctor is; ticked, it counts as
// fixed in the bar above.

import { fetchRule } from "../api.js";
import { card, copyable, copying, folded, h, prose } from "../dom.js";
import { advised, filled } from "../findings/advice.js";
import { codeOf, editorChoice } from "../findings/code.js";
import { noteEditor, noteTags } from "../findings/note.js";
import { where } from "../findings/where.js";
import { among, count, interval, moneyAndEnergy, ms, percent, ranges } from "../format.js";
import { shortPath, toModule } from "../layers/model.js";
import { framed, largeLanes, smallLanes, smallSteps, withinStep } from "../lanes.js";
import { belowFaults, evidenceId, evidenceSum, faults, ownerName, ownerOf } from "../model.js";
import { openButton, otherTools, warm, warmWhenIdle } from "../trace.js";
import { tip } from "../tips.js";
import { mark } from "../verdict/badge.js";
import { arithmetic } from "../verdict/costliest.js";
import { prediction } from "../whatif.js";
import { table } from "../table.js";

/** @typedef {import("../views.js").View} View */
/** @typedef {import("../views.js").Shown} Shown */
/** @typedef {import("../model.js").Finding} Finding */
/** @typedef {import("../model.js").Diagnosis} Diagnosis */
/** @typedef {import("../model.js").Views} Views */

const SHOWN = 8;

/** @type {View} */
export const findings = {
  title: "Findings",
  fragment: "findings",
  render,
  table({ diagnosis }) {
    const all = [...diagnosis.findings, ...diagnosis.opportunities];
    if (!all.length) return null;
    return () => ({
      heads: ["finding", "cause", "severity", "ranks", "cost, ms", "80 % interval from, ms", "to, ms", "if fixed alone, ms", "confidence"],
      rows: all.map((finding) => [
        finding.id,
        finding.cause,
        finding.severity,
        among(finding.ranks, diagnosis.ranks, "rank"),
        finding.cost_ms,
        ...finding.range_ms,
        finding.alone_ms,
        finding.confidence,
      ]),
    });
  },
  keys: [["Space", "on a box: tick this finding as fixed"], ["Enter", "on a finding: open or close it"]],
};

/**
 * @param {HTMLElement} element
 * @param {Shown} shown
 */
function render(element, shown) {
  const { diagnosis, place } = shown;
  const worthFixing = faults(diagnosis);
  const { small: below, observations } = belowFaults(diagnosis);
  const { opportunities } = diagnosis;
  if (!diagnosis.findings.length && !opportunities.length) {
    element.append(card("Findings", h("p", {}, diagnosis.verdict === "unexplained" ? "No rule explains what is slow. " : "No findings. ", linked(shown, "quality", "See the checks"))));
    return;
  }
  const ofOwner = (/** @type {Finding} */ finding) => !place.owner || place.finding === finding.id || ownerOf(finding) === place.owner;
  const hidden = diagnosis.findings.filter((finding) => !ofOwner(finding)).length;
  const predicted = shown.whole ? null : prediction(shown);
  const list = (/** @type {Finding[]} */ some) => some.filter(ofOwner).map((finding) => item(finding, shown, predicted));
  element.append(
    ...[predicted?.element].filter((part) => part !== undefined),
    h(
      "section",
      { class: "card findings" },
      h("h2", {}, worthFixing.length ? "Findings, costliest first" : diagnosis.findings.length ? "Findings" : "No findings"),
      hidden > 0 && h("p", { class: "note hidden-findings" }, `${hidden} of ${count(diagnosis.findings.length, "finding")} not shown: their fixes remove no ${ownerName(place.owner)}. `, linked(shown, "findings", "Show all", { owner: "" })),
      list(worthFixing),
      below.some(ofOwner) ? h("h3", {}, "Other costs, not in the verdict") : null,
      list(below),
      observations.some(ofOwner) ? h("h3", {}, "Observations, no cost") : null,
      list(observations),
      opportunities.some(ofOwner) ? h("h3", {}, "Opportunities: nothing is wrong, but the step could be shorter still ", tip("opportunity")) : null,
      list(opportunities),
    ),
  );
  if (place.finding) document.getElementById(`finding-${place.finding}`)?.scrollIntoView({ block: "start" });
}

/**
 * @param {Shown} shown
 * @param {string} view
 * @param {string} text
 * @param {import("../address.js").Place} [changes]
 */
function linked({ link }, view, text, changes) {
  const anchor = link(view, changes);
  anchor.textContent = text;
  return anchor;
}

/**
 * @param {Finding} finding
 * @param {Shown} shown
 * @param {ReturnType<typeof prediction>} predicted
 */
function item(finding, shown, predicted) {
  const { id } = finding;
  const { diagnosis, views, place, keep } = shown;
  const nodes = views ? [...new Set(finding.ranks.map((rank) => views.nodes[views.ranks.indexOf(rank)]))] : [];
  const some = finding.ranks.length < diagnosis.ranks.length;
  const parts = [
    nodes.length === 1 && nodes[0],
    among(finding.steps, diagnosis.steps, "step").replace(/^all.*/, "all steps"),
  ];
  const costs = finding.cost_ms > 0 || finding.alone_ms > 0;
  const details = /** @type {HTMLDetailsElement} */ (
    h(
      "details",
      { class: "finding", id: `finding-${id}` },
      h(
        "summary",
        {},
        mark(diagnosis, id),
        h("span", { class: "severity" }, finding.severity[0].toUpperCase() + finding.severity.slice(1)),
        h(
          "span",
          { class: "title" },
          prose(finding.title),
          h("small", {}, finding.rule + (finding.cause ? `, cause: ${words(finding.cause)}` : "")),
          shown.whole ? null : noteTags(finding, diagnosis.name),
        ),
        small(finding, views) ?? h("span"),
        h(
          "span",
          { class: "where" },
          h("b", { class: some && costs ? "affected" : null }, among(finding.ranks, diagnosis.ranks, "rank")),
          h("small", { title: nodes.length === 1 ? nodes[0] : null }, parts.filter(Boolean).join(", ")),
        ),
        h(
          "span",
          { class: "cost", "data-quantity": "cost" },
          finding.cost_ms > 0
            ? [ms(finding.cost_ms), h("small", { title: interval(...finding.range_ms) }, `${percent(finding.cost_ms / diagnosis.step_ms)} of the step`)]
            : h("span", { title: "Its fix would not shorten the step." }, "–"),
        ),
      ),
    )
  );
  const fill = () => details.childElementCount === 1 && details.append(body(finding, shown));
  if (place.finding === id || shown.whole) {
    fill();
    details.open = true;
  }
  details.addEventListener("toggle", () => {
    if (details.open) {
      fill();
      keep({ finding: id });
      if (finding.evidence.some(({ window }) => window)) warmWhenIdle();
    } else if (shown.place.finding === id) keep({ finding: "" });
  });
  const box = predicted?.box(finding) ?? h("span");
  return h("div", { class: `finding-row ${finding.severity}` }, h("span", { class: "fix" }, box), details);
}

/**
 * The evidence at a glance: in the timeline where that shows its step, else by rank and step.
 * @param {Finding} finding
 * @param {Views | null} views
 */
function small({ evidence }, views) {
  if (!views || !evidence.length) return null;
  const { lanes } = views;
  if (lanes && framed({ ...views, lanes }, evidence).length) return smallLanes({ ...views, lanes }, evidence);
  return smallSteps(views, evidence);
}

/**
 * @param {Finding} finding
 * @param {Shown} shown
 */
function body(finding, shown) {
  const { diagnosis, views, link } = shown;
  const [advice, code] = advised(finding.fix_parts, shown.live ?? false);
  const affected = new Set(finding.ranks.length < diagnosis.ranks.length ? finding.ranks : []);
  const windows = h("div", { class: "windows", pointerenter: finding.evidence.some(({ window }) => window) && warm });
  const draw = () => windows.replaceChildren(...(finding.evidence.length ? [h("h3", {}, "Where to look"), ...[total(finding), evidence(finding, shown)].filter((part) => part !== null)] : []));
  draw();
  return h(
    "div",
    { class: "opened" },
    h(
      "div",
      { class: "columns" },
      h("div", {}, h("h3", {}, "What was seen"), h("p", {}, prose(finding.why)), modulesOf(finding, shown)),
      h("div", {}, h("h3", {}, "What to do"), h("p", {}, prose(advice)), code ? copyable(code) : null),
    ),
    where(finding, shown, draw),
    views?.lanes
      ? h(
          "figure",
          {},
          largeLanes({ ...views, lanes: views.lanes }, affected, finding.evidence),
          h("figcaption", {}, caption({ ...views, lanes: views.lanes }, finding)),
        )
      : null,
    windows,
    finding.evidence.some(({ source }) => source) ? folded("Editor of file:line", () => editorChoice(draw)) : null,
    again(finding, shown),
    otherTools(shown, finding),
    h(
      "ul",
      { class: "sure" },
      saving(finding, diagnosis),
      h("li", {}, h("b", {}, `Confidence ${finding.confidence}.`)),
      shown.whole ? limits(finding) : [],
    ),
    finding.thresholds.length && !shown.whole ? folded(`${count(finding.thresholds.length, "limit")} that it was compared with`, () => h("ul", { class: "sure" }, limits(finding))) : null,
    finding.measurements.length ? folded("How this was computed", () => h("div", {}, finding.cost_ms > 0 || finding.alone_ms > 0 ? arithmetic(finding, diagnosis) : null, measurements(finding, shown))) : null,
    folded(`About the rule ${finding.rule}`, () => help(finding.rule)),
    shown.whole ? null : noteEditor(finding, diagnosis.name),
    h("p", { class: "actions" }, copying("Copy link to this finding", () => link("findings", { finding: finding.id }).href, "Copy it from the address bar")),
  );
}

/**
 * From the modules that it names to what the Layers view says of each.
 * @param {Finding} finding
 * @param {Shown} shown
 */
function modulesOf({ modules }, shown) {
  const link = toModule(shown);
  const links = modules.map((path) => link(path, shortPath(path))).filter((one) => one !== null);
  return links.length ? h("p", { class: "ways" }, "Layers: ", ...links.flatMap((one, i) => (i ? [", ", one] : [one]))) : null;
}

/** The thresholds of its rule, and why they are so. @param {Finding} finding */
const limits = ({ thresholds }) => thresholds.map(({ name, value, unit, reason }) => h("li", {}, h("b", {}, `${words(name)} ${value} ${unit}`), " – ", prose(reason)));

/**
 * What to record once more, where that tells more of it.
 * @param {Finding} finding
 * @param {Shown} shown
 */
function again({ record }, { diagnosis: { setting }, logdir = "" }) {
  if (!record) return null;
  const doctors = setting.logdir || logdir;
  const how =
    setting.recorder === "nsys"
      ? [" Nsight Systems records it so:"]
      : [" While the job trains with ", h("code", {}, `tb_ddp_doctor.capture.Doctor(${doctors ? JSON.stringify(doctors) : "LOGDIR"})`), ", this captures it:"];
  return h(
    "div",
    { class: "again" },
    h("h3", {}, "Record again"),
    h("p", {}, record.why, how),
    copyable(filled(record.command, logdir)),
  );
}

/**
 * What the fix saves, how sure that is, and what it is worth a day where the price or the power is known.
 * @param {Finding} finding
 * @param {Diagnosis} diagnosis
 */
function saving({ id, severity, cost_ms, alone_ms, range_ms }, { rates }) {
  if (!(cost_ms > 0) && !(alone_ms > 0)) return null;
  const shared = Math.abs(alone_ms - cost_ms) > 0.1;
  const gain = rates?.gains.find(({ finding }) => finding === id);
  const saved = gain && moneyAndEnergy(gain.money_per_day, gain.energy_kwh_per_day, rates?.currency ?? "");
  return h(
    "li",
    {},
    h("b", {}, `${severity === "opportunity" ? "It would save" : "Fixing it saves"} ${ms(cost_ms)} a step${shared ? " on top of other fixes" : ""}`),
    `, ${interval(...range_ms)}${shared ? `; ${ms(alone_ms)} if fixed alone` : ""}.`,
    saved ? ` That is ${saved} a day.` : null,
  );
}

/**
 * The numbers that a finding rests on, and the steps from them to its cost.
 * @param {Finding} finding
 * @param {Shown} shown
 */
function measurements({ id, measurements: all }, { diagnosis }) {
  const some = (/** @type {number[]} */ numbers, /** @type {number[]} */ of) =>
    !numbers.length ? "" : numbers.length === of.length ? "all" : ranges(numbers);
  const rows = all.map(({ name, value, unit, ranks, steps, count }) => [
    name,
    amount(value, unit),
    count === null ? "" : amount(count, "1"),
    some(ranks, diagnosis.ranks),
    some(steps, diagnosis.steps),
  ]);
  return table(["measured", "measured value", "count", "ranks", "steps"], rows, `how ${id} was computed`);
}

/**
 * @param {number} value
 * @param {string} unit
 */
function amount(value, unit) {
  if (unit === "ms") return ms(value);
  if (unit === "us") return ms(value / 1000);
  if (unit === "of the step") return `${percent(value)} of the step`;
  const digits = value.toLocaleString("en", { maximumSignificantDigits: 4 });
  return unit === "1" ? digits : `${digits}\u00a0${unit}`;
}

/**
 * What the rule looks for, why it matters, and what it cannot see.
 * @param {string} rule
 */
function help(rule) {
  const element = h("div", { class: "help" }, "Loading…");
  fetchRule(rule).then(
    ({ summary, sections }) =>
      element.replaceChildren(
        h("p", {}, prose(summary)),
        ...Object.entries(sections).map(([name, text]) => h("p", {}, h("b", {}, `${name}. `), ...prose(text))),
      ),
    (error) => (element.textContent = error.message),
  );
  return element;
}

/**
 * @param {import("../lanes.js").Drawn} views
 * @param {Finding} finding
 */
function caption(views, finding) {
  const { lanes, ranks } = views;
  const who = lanes.ranks.length < ranks.length ? `the ${lanes.ranks.length} slowest of ${count(ranks.length, "rank")}` : "all ranks";
  const frames = framed(views, finding.evidence).length ? "; frames mark evidence" : "";
  return `Timeline of step ${lanes.step}, ${who} on one clock${frames}.`;
}

/**
 * The sum that the listed evidence is a part of.
 * @param {Finding} finding
 */
function total(finding) {
  const sum = evidenceSum(finding);
  if (!sum) return null;
  const listed = finding.evidence.length;
  const rest = listed >= sum.count ? "" : listed === 1 ? "; the longest below" : `; the ${listed} longest below`;
  return h("p", { class: "note sum" }, `${amount(sum.count, "1")} ${sum.name}${sum.ms === null ? "" : `, ${ms(sum.ms)}`}${rest}.`);
}

/**
 * @param {Finding} finding
 * @param {Shown} shown
 */
function evidence(finding, shown) {
  const { views, place } = shown;
  const selected = finding.evidence.map(({ rank, step }) => (!place.rank || String(rank) === place.rank) && (!place.step || String(step) === place.step));
  const matching = selected.filter(Boolean).length;
  const all = finding.evidence.map((item, i) => {
    const within = views && withinStep(views, item);
    return [
      `rank ${item.rank}`,
      `step ${item.step}`,
      within ? `${ms(within.from)} – ${ms(within.to)}` : "",
      ms((item.end_ns - item.start_ns) / 1e6),
      h("span", { class: "ways" }, toTimeline(shown, finding, i), openButton(shown, finding, i)),
      h("span", {}, prose(item.what), codeOf(item)),
    ];
  });
  const rows = matching ? all.filter((_, i) => selected[i]) : all;
  const heads = ["rank", "step", "from – to, in the step", "length", "trace", "what it shows"];
  const of = [finding.rule, finding.cause, ...finding.ranks.slice(0, 8)].filter((part) => part !== null);
  const label = `evidence of ${of.join(" ")}`;
  const some = h("div", { class: "evidence" }, table(heads, rows.slice(0, SHOWN), label));
  if (rows.length > SHOWN) {
    const showAll = () => some.replaceChildren(table(heads, rows, label));
    some.append(h("button", { type: "button", click: showAll }, `Show all ${rows.length}`));
  }
  if (rows.length < all.length) some.append(h("p", { class: "note" }, `${rows.length} of ${all.length} windows: those of the selected rank and step.`));
  else if (!matching) some.append(h("p", { class: "note" }, "No window lies on the selected rank and step: all are listed."));
  return some;
}

/**
 * A link to one piece of evidence in the view of the timeline; null where the traces are not here.
 * @param {Shown} shown
 * @param {Finding} finding
 * @param {number} item index of the evidence
 */
function toTimeline({ views, link }, finding, item) {
  if (!views || views.from_digests) return null;
  const { rank, step } = finding.evidence[item];
  const anchor = link("timeline", { evidence: evidenceId(finding, item) });
  anchor.setAttribute("aria-label", `Timeline of rank ${rank}, step ${step}`);
  anchor.textContent = "Timeline";
  return anchor;
}

/** @param {string} name an identifier as words */
const words = (name) => name.replace(/[_-]/g, " ");
