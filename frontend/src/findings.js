// Findings, costliest first. Each opens to what was seen, what to do, and how sure the doctor is.

import { copyable, h, prose, table } from "./dom.js";
import { among, ms, percent } from "./format.js";
import { framed, largeLanes, smallLanes, withinStep } from "./lanes.js";
import { faults } from "./model.js";

/** @typedef {import("./model.js").Report} Report */
/** @typedef {import("./model.js").Finding} Finding */
/** @typedef {import("./model.js").Views} Views */

const SHOWN = 8;

/** @param {Report} report */
export function findings(report) {
  const worthFixing = faults(report.diagnosis);
  const minor = report.diagnosis.findings.filter((finding) => finding.severity === "info");
  if (!report.diagnosis.findings.length) return null;
  return h(
    "section",
    { class: "card findings" },
    h("h2", {}, worthFixing.length ? "Findings, costliest first" : "Noticed, below 3 % of the step"),
    worthFixing.map((finding) => item(finding, report)),
    worthFixing.length && minor.length ? h("h3", {}, "Noticed, below 3 % of the step") : null,
    minor.map((finding) => item(finding, report)),
  );
}

/**
 * @param {Finding} finding
 * @param {Report} report
 */
function item(finding, report) {
  const { diagnosis, views } = report;
  const nodes = views ? [...new Set(finding.ranks.map((rank) => views.nodes[views.ranks.indexOf(rank)]))] : [];
  const some = finding.ranks.length < diagnosis.ranks.length;
  const where = [
    nodes.length === 1 && nodes[0],
    among(finding.steps, diagnosis.steps, "step").replace(/^all.*/, "all steps"),
  ];
  const pictured = finding.severity !== "info" && views?.lanes;
  const details = h(
    "details",
    {
      class: `finding ${finding.severity}${pictured ? "" : " plain-row"}`,
      id: ["finding", finding.rule, finding.cause].filter(Boolean).join("-"),
    },
    h(
      "summary",
      {},
      h("span", { class: "severity" }, finding.severity[0].toUpperCase() + finding.severity.slice(1)),
      h(
        "span",
        { class: "title" },
        prose(finding.title),
        h("small", {}, finding.rule + (finding.cause ? `, cause: ${words(finding.cause)}` : "")),
      ),
      pictured ? smallLanes({ ...views, lanes: pictured }, finding.evidence) : null,
      h(
        "span",
        { class: "where" },
        h("b", { class: some ? "accused" : null }, among(finding.ranks, diagnosis.ranks, "rank")),
        h("small", {}, where.filter(Boolean).join(", ")),
      ),
      h(
        "span",
        { class: "cost" },
        ms(finding.cost_ms),
        h("small", {}, `${percent(finding.cost_ms / diagnosis.step_ms)} of the step`),
      ),
    ),
  );
  details.addEventListener("toggle", () => details.append(body(finding, report)), { once: true });
  return details;
}

/**
 * @param {Finding} finding
 * @param {Report} report
 */
function body(finding, { diagnosis, views }) {
  const [advice, code] = split(finding.fix);
  const accused = new Set(finding.ranks.length < diagnosis.ranks.length ? finding.ranks : []);
  return h(
    "div",
    { class: "opened" },
    h(
      "div",
      { class: "columns" },
      h("div", {}, h("h3", {}, "What was seen"), h("p", {}, prose(finding.why))),
      h("div", {}, h("h3", {}, "What to do"), h("p", {}, prose(advice)), code ? copyable(code) : null),
    ),
    views?.lanes
      ? h(
          "figure",
          {},
          largeLanes({ ...views, lanes: views.lanes }, accused, finding.evidence),
          h("figcaption", {}, caption({ ...views, lanes: views.lanes }, finding)),
        )
      : null,
    finding.evidence.length ? [h("h3", {}, "Where to look"), evidence(finding, views)] : null,
    h(
      "ul",
      { class: "sure" },
      h("li", {}, h("b", {}, `Confidence ${finding.confidence}.`), finding.thresholds.length ? " Compared with:" : ""),
      finding.thresholds.map(({ name, value, unit, reason }) =>
        h("li", {}, h("b", {}, `${words(name)} ${value} ${unit}`), " – ", prose(reason)),
      ),
    ),
  );
}

/**
 * @param {import("./lanes.js").Drawn} views
 * @param {Finding} finding
 */
function caption(views, finding) {
  const { lanes, ranks } = views;
  const who = lanes.ranks.length < ranks.length ? `the ${lanes.ranks.length} slowest of ${ranks.length}` : "all";
  const frames = framed(views, finding.evidence).length ? "; frames mark evidence" : "";
  return `Timeline of step ${lanes.step}, ${who} ranks on one clock${frames}.`;
}

/**
 * @param {Finding} finding
 * @param {Views | null} views
 */
function evidence(finding, views) {
  const rows = finding.evidence.map((item) => {
    const within = views && withinStep(views, item);
    return [
      `rank ${item.rank}`,
      `step ${item.step}`,
      within ? `${ms(within.from)} – ${ms(within.to)}` : "",
      ms((item.end_ns - item.start_ns) / 1e6),
      h("span", {}, prose(item.what)),
    ];
  });
  const heads = ["rank", "step", "from – to, in the step", "length", "what to see there"];
  const some = h("div", { class: "evidence" }, table(heads, rows.slice(0, SHOWN)));
  if (rows.length > SHOWN) {
    const all = () => some.replaceChildren(table(heads, rows));
    some.append(h("button", { type: "button", click: all }, `Show all ${rows.length}`));
  }
  return some;
}

/**
 * Advice, and after the first empty line the code.
 * @param {string} fix
 */
function split(fix) {
  const at = fix.indexOf("\n\n");
  return at < 0 ? [fix, ""] : [fix.slice(0, at), fix.slice(at).trim()];
}

/** @param {string} name an identifier as words */
const words = (name) => name.replace(/[_-]/g, " ");
