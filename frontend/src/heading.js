// What stands above every view: which job of which kind it is, and the sentence that says who causes the biggest loss.

import { h, prose } from "./dom.js";
import { count, ranges } from "./format.js";
import { nodeCount } from "./model.js";

/** @typedef {import("./model.js").Report} Report */

/**
 * @param {Report} report
 * @param {HTMLElement[]} beside what stands to the right of the job's facts
 */
export function heading(report, beside) {
  const { diagnosis } = report;
  return h(
    "header",
    { class: "verdict" },
    h("div", { class: "top" }, h("p", { class: "facts", title: diagnosis.name }, facts(report)), beside),
    h("h1", { class: diagnosis.level }, sentence(diagnosis)),
    diagnosis.headline_rest ? h("p", { class: "rest" }, prose(diagnosis.headline_rest.trim())) : null,
    // Where a file is damaged, that rank's is there already.
    diagnosis.missing_ranks.length && !diagnosis.incomplete.length
      ? h("p", { class: "note" }, `${diagnosis.missing_ranks.length > 1 ? `Ranks ${ranges(diagnosis.missing_ranks)} have` : `Rank ${diagnosis.missing_ranks[0]} has`} no trace in this folder: add what the profiler wrote there.`)
      : null,
    diagnosis.config.map(({ file, values }) =>
      h("p", { class: "note" }, `Settings of ${file}: ${Object.entries(values).map(([name, value]) => `${name}=${value}`).join(", ")}.`),
    ),
  );
}

/** @param {Report} report */
function facts({ diagnosis, views }) {
  const nodes = nodeCount(views);
  const { ranks, world_size } = diagnosis;
  const of = ranks.length < world_size ? h("em", { class: "few", title: "The other ranks left no readable trace." }, `${ranks.length.toLocaleString("en")} of ${count(world_size, "rank")}`) : count(ranks.length, "rank");
  const parts = [
    diagnosis.kind === "unknown" ? "unknown kind of job" : diagnosis.kind,
    [of, nodes > 1 ? ` on ${count(nodes, "node")}` : ""],
    `${diagnosis.steps.length === 1 ? "step" : "steps"} ${ranges(diagnosis.steps)}`,
    views?.device,
    views?.from_digests && "traces not available, digests only",
  ];
  return [
    h("b", {}, diagnosis.name),
    h(
      "span",
      {},
      parts.flatMap((part) => (part ? [" · ", ...[part].flat()] : [])),
    ),
  ];
}

/**
 * The headline, with who costs it and how much in the colour of the fault. What else it says stands below, smaller.
 * @param {Report["diagnosis"]} diagnosis
 */
function sentence({ headline, headline_parts: parts, headline_rest: rest }) {
  if (!parts) return prose(rest && headline.endsWith(rest) ? headline.slice(0, -rest.length) : headline);
  const [who, cost] = [parts.subject, parts.cost].map((part) => h("b", {}, ...prose(part)));
  return [who, ...prose(` ${parts.verb} `), cost, ...prose(` of ${parts.step} a step (${parts.share})${parts.often && `, ${parts.often}`}.`)];
}
