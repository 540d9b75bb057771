// What the step would be with other buckets, links, dtypes, ranks, sharding, loaders, GPUs or launches, and with findings
// fixed. Each change is asked of the server, which plays the steps again; the address keeps what is chosen, as a query.

import { fetchPlan, isReport } from "../api.js";
import { card, copyable, h } from "../dom.js";
import { ms } from "../format.js";
import { hasGpu } from "../model.js";
import { bars } from "../plan/bars.js";
import { CURVES, chart } from "../plan/chart.js";
import { NAMES, atFirst, controls } from "../plan/controls.js";
import { besides, breaking, bucketsOf, codeOf, restsOf, sentence } from "../plan/words.js";

/** @typedef {import("../../schema.js").PlanAnswer} PlanAnswer */

/** A slider is asked for at once, its curve when it rests. */
const RESTS_MS = 250;
/** What is answered sooner says nothing of that it is asked. */
const SLOW_MS = 400;
const PREDICTING = "Predicting…";
/** In the address: nothing is changed, and no finding fixed. */
const AS_RECORDED = "now";

/** @type {import("../views.js").View} */
export const plan = {
  title: "Plan",
  fragment: "plan",
  lacks,
  render(element, shown) {
    if (!isReport) return planned(element, shown);
    element.append(card("Plan", h("p", { class: "note" }, lacks())));
    return undefined;
  },
  table: () => null,
  keys: [["Arrow keys", "move the slider that is focused"]],
};

function lacks() {
  return isReport ? "A report does not play steps again. Open the log directory in TensorBoard, or use ddp-doctor plan." : "";
}

/**
 * @param {HTMLElement} element
 * @param {import("../views.js").Shown} shown
 */
function planned(element, { diagnosis, place, keep }) {
  const chosen = place.plan === undefined ? atFirst(diagnosis) : new URLSearchParams(place.plan === AS_RECORDED ? "" : place.plan);
  const said = h("p", { class: "prospect", role: "status" }, PREDICTING);
  const split = h("div");
  const more = h("div");
  const picture = h("div", { class: "plan-picture" });
  const broken = h("p", { class: "note" }, PREDICTING);
  const answered = waiting(() => (said.textContent = PREDICTING), [split, more]);
  const curved = waiting(() => (broken.textContent = PREDICTING), [picture]);
  const recorded = h("div");
  const rests = h("div");
  const apply = h("div");
  const levers = controls(chosen, diagnosis, choose);
  let over = CURVES.find((field) => chosen.has(field)) ?? "";
  /** @type {Promise<void> | null} */
  let refused = null;
  let isPlaced = false;
  let asked = 0;
  let timer = 0;
  /** @type {PlanAnswer | null} */
  let drawn = null;

  const axis = /** @type {HTMLSelectElement} */ (
    h(
      "select",
      {
        "aria-label": "Step over",
        change: () => {
          over = axis.value;
          curve(asked);
        },
      },
      CURVES.map((field) => h("option", { value: field }, (NAMES.get(field) ?? field).toLowerCase())),
    )
  );

  /** @param {string} field */
  function choose(field) {
    keep({ plan: chosen.toString() || AS_RECORDED });
    if (CURVES.includes(field)) over = field;
    ask();
  }

  async function ask() {
    const mine = ++asked;
    clearTimeout(timer);
    answered.begin();
    curved.begin();
    try {
      const answer = await fetchPlan(diagnosis.name, chosen);
      if (mine !== asked) return;
      answered.end();
      show(answer);
      timer = setTimeout(() => curve(mine), drawn ? RESTS_MS : 0);
    } catch (error) {
      if (mine !== asked) return;
      answered.end();
      curved.end();
      said.textContent = `No prediction: ${error instanceof Error ? error.message : String(error)}`;
      broken.textContent = "";
    }
  }

  /** Which fields have no answer; the curve is over the first that has one, if no other is chosen. */
  async function refuse() {
    const { unanswerable } = await fetchPlan(diagnosis.name, new URLSearchParams(), { fields: "1" });
    const fields = unanswerable.map(({ question }) => question);
    over ||= CURVES.find((field) => !fields.includes(field)) ?? CURVES[0];
    for (const { question, reason } of unanswerable) levers.refuse(question, reason);
  }

  /** @param {number} mine */
  async function curve(mine) {
    curved.begin();
    try {
      await (refused ??= refuse());
      if (mine !== asked) return;
      const answer = await fetchPlan(diagnosis.name, chosen, { curve: over });
      if (mine !== asked) return;
      curved.end();
      drawn = answer;
      draw();
    } catch (error) {
      // What is chosen was predicted; the curve of before stays.
      refused = null;
      if (mine !== asked) return;
      curved.end();
      broken.textContent = `This curve was not predicted: ${error instanceof Error ? error.message : String(error)}`;
    }
  }

  function draw() {
    if (!drawn || curved.isSaid()) return; // drawn once what is on its way is here
    axis.value = over;
    const found = drawn.plan.curves[0];
    const refused = drawn.plan.refusals.filter(({ question }) => question === over || question === "all");
    const missing = refused.map(({ values, reason }) => `${values.length ? `${values.join(", ")}: ` : ""}${reason}`);
    broken.textContent = [breaking(found), ...missing].filter(Boolean).join(" ");
    // Runs with other buckets are as measured, with nothing else changed.
    const measured = [...chosen.keys()].some((field) => field !== "bucket_mb") ? [] : drawn.plan.measured;
    if (found) picture.replaceChildren(chart({ ...drawn.plan, measured }, chosen.get(found.field), Math.max(picture.clientWidth, 260)));
    else picture.replaceChildren();
    recorded.replaceChildren(...(over === "bucket_mb" ? bucketsOf(drawn.plan.buckets) : []));
  }

  /** @param {PlanAnswer} answer */
  function show({ plan: found }) {
    if (!isPlaced) levers.place(found);
    isPlaced = true;
    const { prediction, now_ms, refusals } = found;
    const refused = refusals.filter(({ question }) => question !== "bucket_mb" || chosen.has("bucket_mb"));
    split.replaceChildren(bars(found, hasGpu(diagnosis)));
    const reason = refused.map((one) => one.reason).join(" ");
    said.textContent = prediction ? sentence(prediction, now_ms) : reason || `${ms(now_ms)} a step, nothing changed. Tick a finding, or move a slider.`;
    more.replaceChildren(...besides(found));
    rests.replaceChildren(...restsOf(prediction, refused));
    const code = prediction ? codeOf(chosen) : "";
    apply.replaceChildren(...(code ? [h("h3", {}, "Apply"), copyable(code)] : []));
  }

  element.append(
    h(
      "div",
      { class: "plan-columns" },
      card("Change", ...levers.elements),
      h(
        "div",
        { class: "plan-found" },
        card("The step, now and predicted", said, h("p", { class: "note" }, "By owner, ms a step, mean over ranks:"), split, more),
        card(
          "The curve",
          h("label", { class: "plan-axis" }, "Step over ", axis),
          h("p", { class: "note" }, "The line is predicted, its band the range; circles are runs of this log directory as measured."),
          picture,
          broken,
          recorded,
        ),
        card("What it rests on", rests, apply),
      ),
    ),
  );
  const resized = new ResizeObserver(draw);
  resized.observe(picture);
  ask();
  return () => {
    asked++;
    clearTimeout(timer);
    answered.end();
    curved.end();
    resized.disconnect();
  };
}

/**
 * Says that an answer is on its way, and makes what it will replace paler, if it takes longer than a moment.
 * @param {() => void} say
 * @param {HTMLElement[]} stale
 */
function waiting(say, stale) {
  let timer = 0;
  let isSaid = false;
  const mark = (/** @type {boolean} */ is) => stale.forEach((element) => element.classList.toggle("stale", is));
  return {
    begin() {
      timer ||= setTimeout(() => {
        isSaid = true;
        mark(true);
        say();
      }, SLOW_MS);
    },
    end() {
      clearTimeout(timer);
      timer = 0;
      isSaid = false;
      mark(false);
    },
    isSaid: () => isSaid,
  };
}
