// What the step would be with other buckets, links, dtypes, ranks or launches. Each change is asked of the server, which
// plays the steps again; the address keeps what is chosen, as a query.

import { fetchPlan, isReport } from "../api.js";
import { card, copyable, h } from "../dom.js";
import { ms, percent, signed } from "../format.js";
import { chart } from "../plan/chart.js";

/** @typedef {import("../../schema.js").PlanAnswer} PlanAnswer */
/** @typedef {import("../../schema.js").Prediction} Prediction */

/**
 * A slider over some values, of which the first is as recorded.
 * @typedef {{field: string, name: string, unit: string, values: string[]}} Control
 */

/** @type {Control[]} */
const CONTROLS = [
  { field: "bucket_mb", name: "Bucket size", unit: "MiB", values: ["0.25", "0.5", "1", "2", "5", "10", "25", "50", "100"] },
  { field: "dtype", name: "Gradients' dtype", unit: "", values: ["float32", "bfloat16", "float8"] },
  { field: "links", name: "Links, times as fast", unit: "x", values: ["0.5", "2", "4", "8"] },
  { field: "ranks", name: "Ranks", unit: "", values: ["2", "4", "8", "16", "32", "64", "128", "256", "512", "1024"] },
  { field: "accumulate", name: "Passes per AllReduce", unit: "", values: ["2", "4", "8"] },
  { field: "workers", name: "DataLoader workers", unit: "", values: ["2", "4", "8", "16"] },
];
const NOW = "as now";
/** A slider is asked for at once, its curve when it rests. */
const RESTS_MS = 250;

/** @type {import("../views.js").View} */
export const plan = {
  title: "Plan",
  fragment: "plan",
  render(element, shown) {
    if (isReport) {
      element.append(card("Plan", h("p", { class: "note" }, "A report does not play steps again. Open the log directory in TensorBoard, or use ddp-doctor plan.")));
      return undefined;
    }
    return planned(element, shown);
  },
  table: () => null,
  keys: [["Arrow keys", "move the slider that is focused"]],
};

/**
 * @param {HTMLElement} element
 * @param {import("../views.js").Shown} shown
 */
function planned(element, { diagnosis, place, keep }) {
  const chosen = new URLSearchParams(place.plan ?? "");
  const said = h("p", { class: "prospect", role: "status" }, "Predicting…");
  const now = h("div", { class: "plan-bar now" }, h("span", {}, ms(diagnosis.step_ms)));
  const then = h("div", { class: "plan-bar then" }, h("span", {}));
  const picture = h("div", { class: "plan-picture" });
  const rests = h("div");
  const apply = h("div");
  let asked = 0;
  let timer = 0;
  /** @type {PlanAnswer | null} */
  let drawn = null;

  function choose() {
    keep({ plan: chosen.toString() });
    ask();
  }

  async function ask() {
    const mine = ++asked;
    clearTimeout(timer);
    try {
      const answer = await fetchPlan(diagnosis.name, chosen, false);
      if (mine !== asked) return;
      show(answer);
      timer = setTimeout(() => curve(mine), drawn ? RESTS_MS : 0);
    } catch (error) {
      if (mine === asked) said.textContent = `No prediction: ${error instanceof Error ? error.message : String(error)}`;
    }
  }

  /** @param {number} mine */
  async function curve(mine) {
    try {
      const answer = await fetchPlan(diagnosis.name, chosen, true);
      if (mine !== asked) return;
      drawn = answer;
      draw();
    } catch {
      // What is chosen was predicted; the curve of before stays.
    }
  }

  function draw() {
    if (!drawn) return;
    const refused = drawn.plan.refusals.find(({ question }) => question === "bucket_mb" || question === "all");
    if (refused) picture.replaceChildren(h("p", { class: "note" }, refused.reason));
    else picture.replaceChildren(chart(drawn, Number(chosen.get("bucket_mb")) || null, Math.max(picture.clientWidth, 260)));
  }

  /** @param {PlanAnswer} answer */
  function show({ plan: found }) {
    const { prediction, now_ms, refusals } = found;
    const step = prediction?.step_ms ?? now_ms;
    const longest = Math.max(step, now_ms) || 1;
    now.style.width = `${(100 * now_ms) / longest}%`;
    then.style.width = `${(100 * step) / longest}%`;
    then.firstChild?.replaceWith(h("span", {}, ms(step)));
    const refused = refusals.map(({ reason }) => reason).join(" ");
    said.textContent = prediction ? sentence(prediction, now_ms) : refused || `${ms(now_ms)} a step, nothing changed. Move a slider.`;
    rests.replaceChildren(...restsOf(prediction));
    const code = codeOf(chosen);
    apply.replaceChildren(...(code ? [h("h3", {}, "Apply"), copyable(code)] : []));
  }

  const controls = CONTROLS.map((control) => slider(control, chosen, choose));
  const graphs = /** @type {HTMLInputElement} */ (
    h("input", {
      type: "checkbox",
      checked: chosen.has("graphs"),
      change: () => {
        if (graphs.checked) chosen.set("graphs", "1");
        else chosen.delete("graphs");
        choose();
      },
    })
  );
  element.append(
    h(
      "div",
      { class: "plan-columns" },
      card("Change", ...controls, h("label", { class: "plan-check" }, graphs, "Launch by CUDA graphs")),
      h(
        "div",
        { class: "plan-found" },
        card("The step, now and predicted", said, h("div", { class: "plan-bars" }, h("i", {}, "now"), now, h("i", {}, "plan"), then)),
        card("Step over bucket size", h("p", { class: "note" }, "The line is predicted, its band the range; circles are runs of this log directory as measured."), picture),
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
    resized.disconnect();
  };
}

/**
 * @param {Control} control
 * @param {URLSearchParams} chosen
 * @param {() => void} choose
 */
function slider({ field, name, unit, values }, chosen, choose) {
  const text = (/** @type {string | null} */ value) => (value ? `${value} ${unit}`.trim() : NOW);
  const value = h("b", {}, text(chosen.get(field)));
  const at = values.indexOf(chosen.get(field) ?? "") + 1;
  const input = /** @type {HTMLInputElement} */ (
    h("input", {
      type: "range",
      min: 0,
      max: values.length,
      step: 1,
      value: at,
      "aria-label": name,
      "aria-valuetext": text(chosen.get(field)),
      input: () => {
        const picked = values[Number(input.value) - 1];
        if (picked) chosen.set(field, picked);
        else chosen.delete(field);
        value.textContent = text(picked ?? null);
        input.setAttribute("aria-valuetext", value.textContent);
        choose();
      },
    })
  );
  return h("div", { class: "plan-slider" }, h("div", {}, h("span", {}, name), value), input);
}

/**
 * @param {Prediction} prediction
 * @param {number} now ms
 */
function sentence({ step_ms, low_ms, high_ms, change_ms }, now) {
  const share = now > 0 ? Math.abs(change_ms) / now : 0;
  return `${ms(step_ms)} a step instead of ${ms(now)}: ${percent(share)} ${change_ms <= 0 ? "less" : "more"} (${signed(change_ms, 1)} ms, range ${ms(low_ms)} to ${ms(high_ms)}).`;
}

/** @param {Prediction | null} prediction */
function restsOf(prediction) {
  const found = prediction?.rests ?? [];
  if (!found.length) return [h("p", { class: "note" }, "The recorded steps.")];
  return [
    h(
      "dl",
      { class: "plan-rests" },
      found.flatMap(({ basis, what, detail }) => [h("dt", { class: basis }, basis), h("dd", {}, h("b", {}, `${what}: `), detail)]),
    ),
  ];
}

/**
 * What to write into the training script, "" where nothing is.
 * @param {URLSearchParams} chosen
 */
function codeOf(chosen) {
  const bucket = chosen.get("bucket_mb");
  const lines = bucket ? [`model = DistributedDataParallel(model, bucket_cap_mb=${bucket})`] : [];
  if (chosen.get("dtype") === "bfloat16") {
    lines.push("from torch.distributed.algorithms.ddp_comm_hooks import default_hooks", "model.register_comm_hook(None, default_hooks.bf16_compress_hook)");
  }
  if (chosen.has("accumulate")) lines.push("with model.no_sync():  # all but the last pass", "    loss(model(micro_batch)).backward()");
  if (chosen.has("workers")) lines.push(`loader = DataLoader(dataset, num_workers=${chosen.get("workers")}, persistent_workers=True)`);
  return lines.join("\n");
}
