// Two runs side by side: the step time and whether it is significant, then owner by owner, finding by finding, kernel by kernel
// and operator by operator. The earlier run is drawn as an outline, the later one filled.

import { card, folded, h, prose } from "./dom.js";
import { count, ms, percent, signed } from "./format.js";
import { grid, plain } from "./grid.js";
import { difference } from "./layers/difference.js";
import { ownerName, whenOf } from "./model.js";
import { OWNERS } from "./step_parts.js";
import { plainName } from "./timeline/rows.js";
import { table } from "./table.js";

/** @typedef {import("./views.js").Shown} Shown */
/** @typedef {import("../schema.js").Comparison} Comparison */
/** @typedef {import("../schema.js").FindingChange["fate"]} Fate */

/** Amounts that change by less are not coloured, ms. @param {Comparison["step"]} step */
const leastChange = ({ before_ms, least_change }) => least_change * before_ms;
/** Amounts that round to nothing. */
const LEAST_MS = 0.005;
/** Rows of a table of names; the others are summed, and unfold. */
const LISTED = 6;

/**
 * @param {Comparison} found
 * @param {Shown} shown
 */
export function compared(found, shown) {
  return [
    card(
      "Step time",
      h("p", { class: "told" }, found.headline),
      stepTime(found),
      h("ul", { class: "explanation" }, [...found.story, ...found.unlike].map((sentence) => h("li", {}, prose(sentence)))),
    ),
    card("Where the step goes", paired(found)),
    card("Findings", fates(found)),
    found.communication.length ? openIf(found, "Collectives", found.communication, () => collectives(found)) : null,
    found.modules.length > 1 ? openIf(found, "Modules", found.modules.slice(1), () => modules(found, shown)) : null,
    found.kernels.length ? openIf(found, "Kernels", found.kernels, () => kernels(found, shown)) : null,
    found.roofs.length ? later("Kernels against their attainable speed", () => roofs(found, shown)) : null,
    found.operators.length ? later("Operators", () => operators(found, shown)) : null,
  ].filter((part) => part !== null);
}

/**
 * A card that opens when somebody wants it, so that the comparison fits two screens.
 * @param {string} title
 * @param {() => import("./dom.js").Child[]} build
 */
export const later = (title, build) => h("section", { class: "card kept-folded" }, folded(title, () => h("div", {}, build())));

/**
 * A card, which is folded where nothing in it changed by more than is ever significant.
 * @param {Comparison} found
 * @param {string} title
 * @param {{before_ms: number, after_ms: number}[]} amounts
 * @param {() => import("./dom.js").Child[]} build
 */
function openIf({ step }, title, amounts, build) {
  const least = leastChange(step);
  if (amounts.some((amount) => moved(amount) >= least)) return card(title, ...build());
  return later(`${title}: none changed by ${ms(least)} a step`, build);
}

/** @param {Comparison} found */
const collectives = ({ communication, step }) => [
  h("p", { class: "note" }, "Communication without wait, overlapped and exposed; ms per step, mean over ranks."),
  changed("collective", communication, step),
];

/**
 * Two bars, and where the change lies with 95 % confidence.
 * @param {Comparison} found
 */
function stepTime({ runs, step }) {
  const longest = Math.max(step.before_ms, step.after_ms);
  const rows = [step.before_ms, step.after_ms].map((value, i) => {
    const { name, ranks, world_size, steps } = runs[i];
    const size = `${ranks === world_size ? count(ranks, "rank") : `${ranks} of ${count(world_size, "rank")}`}, ${count(steps, "step")}`;
    return h(
      "div",
      { class: "step-row" },
      h("span", { class: "name", title: name }, name, h("small", {}, size)),
      h("div", {}, h("div", { class: i ? "length" : "length earlier", style: `width: ${(100 * value) / longest}%` })),
      h("b", {}, ms(value)),
    );
  });
  return h("div", { class: "step-time", "data-quantity": "before, after, change" }, rows, step.interval && interval(step.change, step.interval, step.tells));
}

/**
 * The change and its interval on a scale with zero in it.
 * @param {number} change
 * @param {[number, number]} bounds
 * @param {boolean} tells
 */
function interval(change, [low, high], tells) {
  const [from, to] = [Math.min(low, 0), Math.max(high, 0)];
  const place = (/** @type {number} */ value) => (to > from ? (100 * (value - from)) / (to - from) : 50);
  const percents = [change, low, high].map((share) => signed(share * 100, 0));
  const label = `${percents[0]} %, between ${percents[1]} and ${percents[2]} % with 95 % confidence`;
  return h(
    "div",
    { class: `step-row ${tells ? verdictOf(change) : "soft"}` },
    h("span", { class: "name" }, "Change", h("small", {}, "95 % confidence")),
    h(
      "div",
      { class: "interval", role: "img", "aria-label": label },
      h("i", { class: "zero", style: `left: ${place(0)}%` }),
      h("i", { class: "reach", style: `left: ${place(low)}%; width: ${place(high) - place(low)}%` }),
      h("i", { class: "point", style: `left: ${place(change)}%` }),
    ),
    h("b", {}, `${percents[0]}\u00a0%`, h("small", {}, `${percents[1]} to ${percents[2]}`)),
  );
}

/** @param {number} change */
const verdictOf = (change) => (change < 0 ? "healthy" : "critical");

/**
 * A pair of bars for each owner, and its change.
 * @param {Comparison} found
 */
function paired({ owners, step, runs }) {
  const gpu = runs.some(({ device }) => device !== "");
  const shown = owners.filter(({ before_ms, after_ms }) => Math.max(before_ms, after_ms) >= LEAST_MS);
  const longest = Math.max(...shown.flatMap(({ before_ms, after_ms }) => [before_ms, after_ms]));
  const least = leastChange(step);
  const key = h("span", { class: "key", role: "columnheader" }, h("i", { class: "earlier" }), "before", h("i", { class: "later" }), "after");
  const [first, ...heads] = ["ms per step", "before", "after", "change"].map((head) => h("span", { role: "columnheader" }, head));
  return h(
    "div",
    { class: "paired", "data-quantity": "before, after, change", role: "table", "aria-label": "Where the step goes" },
    h("div", { class: "pair head", role: "row" }, first, key, heads),
    shown.map(({ name, before_ms, after_ms }) => {
      const bar = (/** @type {number} */ value, /** @type {string} */ kind) =>
        h("div", { class: `length ${kind}`, style: `width: ${(100 * value) / longest}%; --owner: var(--${name})` });
      const verdict = Math.abs(after_ms - before_ms) < least ? "soft" : verdictOf(after_ms - before_ms);
      return h(
        "div",
        { class: "pair", role: "row" },
        h("span", { role: "rowheader", title: whenOf(OWNERS.get(name) ?? { when: "", whenOnCpu: "" }, gpu) }, ownerName(name)),
        h("div", { role: "cell" }, bar(before_ms, "earlier"), bar(after_ms, `owner-${name}`)),
        h("span", { role: "cell" }, plain(before_ms, longest)),
        h("span", { role: "cell" }, plain(after_ms, longest)),
        h("b", { class: verdict, role: "cell" }, change(after_ms - before_ms)),
      );
    }),
  );
}

/**
 * A change as a bar from the middle: to the left what became shorter, to the right what became longer.
 * @param {number} by ms
 * @param {number} furthest ms at both ends
 */
function barOfChange(by, furthest) {
  const share = furthest > 0 ? (50 * Math.abs(by)) / furthest : 0;
  return h("span", { class: "difference", "aria-hidden": "true" }, h("i", { class: by < 0 ? "shorter" : "longer", style: `width: ${share}%; ${by < 0 ? "right" : "left"}: 50%` }));
}

/** @param {Comparison} found */
function fates({ findings, before, after, step }) {
  if (!findings.length) return h("p", { class: "note" }, `No finding costs 3\u00a0% of the step or more, neither in ${before} nor in ${after}.`);
  const colours = { fixed: "healthy", better: "healthy", same: "soft", worse: "critical", new: "critical" };
  return h(
    "ul",
    { class: "fates" },
    findings.map(({ rule, fate, before_ms, after_ms, title }) =>
      h(
        "li",
        {},
        h("b", { class: `fate ${colours[fate]}` }, fate[0].toUpperCase() + fate.slice(1)),
        h("span", { class: "title" }, prose(title), h("small", {}, rule)),
        h(
          "span",
          { class: "cost", "data-quantity": "cost" },
          `${ms(before_ms)} → ${ms(after_ms)}`,
          h("small", {}, `${percent(before_ms / step.before_ms)} → ${percent(after_ms / step.after_ms)} of the step`),
        ),
      ),
    ),
  );
}

const calls = (/** @type {number} */ value) => value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
const change = (/** @type {number} */ value) => signed(value, 2);
const named = (/** @type {string} */ name) => (name ? plainName(name) : "(all others)");

/** @typedef {{name: string, before_ms: number, after_ms: number, before_count?: number, after_count?: number}} Amount */

/** @param {Pick<Amount, "before_ms" | "after_ms">} amount */
const moved = ({ before_ms, after_ms }) => Math.abs(after_ms - before_ms);

/**
 * The few that changed most, then the sum of all others.
 * @param {string} title
 * @param {Amount[]} amounts
 * @param {Comparison["step"]} step
 */
function changed(title, amounts, step) {
  const told = amounts.filter(({ before_ms, after_ms }) => Math.max(before_ms, after_ms) >= LEAST_MS);
  const most = told.filter((each) => each.name && moved(each) >= LEAST_MS).sort((a, b) => moved(b) - moved(a)).slice(0, LISTED);
  const others = told.filter((amount) => !most.includes(amount));
  const sum = (/** @type {"before_ms" | "after_ms" | "before_count" | "after_count"} */ of) => others.reduce((all, amount) => all + (amount[of] ?? 0), 0);
  const rest = { name: "", before_ms: sum("before_ms"), after_ms: sum("after_ms"), before_count: sum("before_count"), after_count: sum("after_count") };
  const furthest = Math.max(...[...most, rest].map(moved));
  const counted = amounts.some(({ before_count }) => before_count !== undefined);
  const rows = [...most, ...(others.length ? [rest] : [])].map(({ name, before_ms, after_ms, before_count = 0, after_count = 0 }) => {
    const [was, now] = [calls(before_count), calls(after_count)];
    return [
      h("span", { title: name }, named(name)),
      plain(before_ms, step.before_ms),
      plain(after_ms, step.before_ms),
      // No colour: a host that waits longer in a launch, say, has only run further ahead.
      h("b", { class: Math.abs(after_ms - before_ms) < leastChange(step) ? "soft" : null }, change(after_ms - before_ms)),
      barOfChange(after_ms - before_ms, furthest),
      ...(counted ? [was === now ? was : `${was} → ${now}`] : []),
    ];
  });
  return h("div", { class: "grid changed" }, table([title, "before", "after", "change", "shorter, longer", ...(counted ? ["calls"] : [])], rows, title));
}

/**
 * @param {Comparison} found
 * @param {Shown} shown
 */
function modules({ modules: told, module_kernels, step, runs }, shown) {
  const all = () =>
    grid({
      title: "compared-modules",
      shown,
      search: "Filter",
      sort: 3,
      columns: [
        { head: "module" },
        { head: "before", unit: "ms", show: plain },
        { head: "after", unit: "ms", show: plain },
        { head: "change", unit: "ms", show: change, by: Math.abs },
      ],
      rows: told.map(({ path, before_ms, after_ms }) => [path || "whole step", before_ms, after_ms, after_ms - before_ms]),
    });
  return [
    h("p", { class: "note" }, `A box is as wide as the difference in ms a step, and at least as wide as all boxes within it: red where a step of ${runs[1].name} takes longer in it, green where shorter, grey where that is within noise. Below modules stand modules within them, and the kernels that changed most. The median over ranks.`),
    ...difference(told, module_kernels, { before: "before", after: "after", least: leastChange(step), shorter: "healthy" }),
    folded(`All ${count(told.length, "module")}`, all),
  ];
}

/**
 * @param {Comparison} found
 * @param {Shown} shown
 */
function kernels({ kernels: told, step }, shown) {
  const all = () =>
    grid({
      title: "compared-kernels",
      shown,
      search: "Filter",
      sort: 3,
      columns: [
        { head: "kernel", show: plainName },
        { head: "before", unit: "ms", show: plain },
        { head: "after", unit: "ms", show: plain },
        { head: "change", unit: "ms", show: change, by: Math.abs },
        { head: "calls before", show: calls },
        { head: "calls after", show: calls },
      ],
      rows: told.map(({ name, before_ms, after_ms, before_count, after_count }) => [named(name), before_ms, after_ms, after_ms - before_ms, before_count, after_count]),
    });
  return [
    h("p", { class: "note" }, "ms per step, mean over ranks and steps, matched by name."),
    changed("kernel", told, step),
    folded(`All ${count(told.length, "kernel")}`, all),
  ];
}

/**
 * Calls whose share of their attainable speed changed; what a call lost is how much shorter a step would be at its earlier share.
 * @param {Comparison} found
 * @param {Shown} shown
 */
function roofs({ roofs: told }, shown) {
  return [
    h("p", { class: "note" }, "Calls of one operator with the same inputs in both runs. Reached is attainable time over time; lost is how much shorter a step would be at the share reached before. ms per step, mean over ranks and steps."),
    grid({
      title: "compared-roofs",
      shown,
      sort: 6,
      columns: [
        { head: "operator" },
        { head: "inputs" },
        { head: "reached before", show: percent },
        { head: "reached after", show: percent },
        { head: "before", unit: "ms", show: plain },
        { head: "after", unit: "ms", show: plain },
        { head: "lost", unit: "ms", show: change, by: Math.abs },
      ],
      rows: told.map(({ operator, inputs, dtype, before_share, after_share, before_ms, after_ms }) => [
        operator.split("::").pop() ?? operator,
        [inputs, dtype].filter(Boolean).join(" "),
        before_share,
        after_share,
        before_ms,
        after_ms,
        before_share > 0 ? after_ms * (1 - after_share / before_share) : null,
      ]),
    }),
  ];
}

/**
 * @param {Comparison} found
 * @param {Shown} shown
 */
function operators({ operators, step }, shown) {
  const all = () =>
    grid({
      title: "compared-operators",
      shown,
      search: "Filter",
      sort: 3,
      columns: [
        { head: "operator" },
        { head: "Self CPU before", unit: "ms", show: plain },
        { head: "Self CPU after", unit: "ms", show: plain },
        { head: "Self CPU change", unit: "ms", show: change, by: Math.abs },
        { head: "Self CUDA before", unit: "ms", show: plain },
        { head: "Self CUDA after", unit: "ms", show: plain },
        { head: "Self CUDA change", unit: "ms", show: change, by: Math.abs },
        { head: "calls before", show: calls },
        { head: "calls after", show: calls },
      ],
      rows: operators.map((each) => [
        named(each.name),
        each.before_host_ms,
        each.after_host_ms,
        each.after_host_ms - each.before_host_ms,
        each.before_device_ms,
        each.after_device_ms,
        each.after_device_ms - each.before_device_ms,
        each.before_count,
        each.after_count,
      ]),
    });
  const counts = (/** @type {import("../schema.js").OperatorChange} */ { name, before_count, after_count }) => ({ name, before_count, after_count });
  const host = operators.map((each) => ({ ...counts(each), before_ms: each.before_host_ms, after_ms: each.after_host_ms }));
  const device = operators.map((each) => ({ ...counts(each), before_ms: each.before_device_ms, after_ms: each.after_device_ms }));
  return [
    h("p", { class: "note" }, "ms per step, mean over ranks and steps. Self CPU: time in the operator without the operators it calls. Self CUDA: time of the kernels it launched itself; for collectives this includes straggler wait."),
    changed("Self CPU", host, step),
    device.some(({ before_ms, after_ms }) => before_ms + after_ms > 0) && changed("Self CUDA", device, step),
    folded(`All ${count(operators.length, "operator")}`, all),
  ];
}
