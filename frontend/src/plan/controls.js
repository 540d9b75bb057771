// What of a job can be otherwise, as sliders, choices and ticks. What is chosen is kept as the query of the server's route.

import { h } from "../dom.js";

/**
 * A slider over some values, of which the first is as recorded; with `choice`, all of them as a list.
 * @typedef {{field: string, name: string, unit: string, values: string[], choice?: boolean}} Control
 */

/** @type {Control[]} */
const CONTROLS = [
  { field: "bucket_mb", name: "Bucket size", unit: "MiB", values: ["0.25", "0.5", "1", "2", "5", "10", "25", "50", "100"] },
  { field: "dtype", name: "Gradients' dtype", unit: "", values: ["float32", "bfloat16", "float8"] },
  { field: "links", name: "Links, times as fast", unit: "x", values: ["0.5", "2", "4", "8"] },
  { field: "ranks", name: "Ranks", unit: "", values: ["1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024"] },
  { field: "sharding", name: "Sharding", unit: "", values: ["ddp", "zero1", "zero2", "zero3", "hsdp"], choice: true },
  { field: "prefetch", name: "Units gathered ahead", unit: "", values: ["0", "1", "2", "3"] },
  { field: "accumulate", name: "Passes per AllReduce", unit: "", values: ["2", "4", "8"] },
  { field: "workers", name: "DataLoader workers", unit: "", values: ["1", "2", "4", "8", "16"] },
  { field: "device", name: "GPU", unit: "", values: ["B200", "H200", "H100", "A100-SXM4-80GB", "MI300X", "L40S"], choice: true },
];
/** @type {[string, string][]} ticks: field and label */
const TICKS = [
  ["strong", "Ranks share today's work (strong scaling)"],
  ["offload", "Shards on the CPU"],
  ["graphs", "Launch by CUDA graphs"],
];
const NOW = "as now";

/** Names of fields, for curves and refusals. @type {Map<string, string>} */
export const NAMES = new Map(CONTROLS.map(({ field, name }) => [field, name]));

/**
 * @param {URLSearchParams} chosen
 * @param {import("../../schema.js").Finding[]} findings
 * @param {(field: string) => void} choose
 * @returns {{elements: HTMLElement[], refuse: (field: string, reason: string) => void}}
 */
export function controls(chosen, findings, choose) {
  /** @type {Map<string, HTMLElement>} */
  const reasons = new Map();
  const levers = CONTROLS.map((control) => {
    const reason = h("p", { class: "plan-reason", hidden: true });
    reasons.set(control.field, reason);
    return h("div", { class: "plan-slider" }, control.choice ? list(control, chosen, choose) : slider(control, chosen, choose), reason);
  });
  const ticks = TICKS.map(([field, label]) => tick(label, chosen.has(field), (on) => set(field, on ? "1" : "")));
  const fixes = findings.filter(({ cost_ms }) => cost_ms > 0).map(({ rule }) => rule);
  const fixed = [...new Set(fixes)].map((rule) =>
    tick(rule, fixedOf(chosen).includes(rule), (on) => {
      const others = fixedOf(chosen).filter((one) => one !== rule);
      set("fixed", (on ? [...others, rule] : others).join(","));
    }),
  );
  function set(/** @type {string} */ field, /** @type {string} */ value) {
    if (value) chosen.set(field, value);
    else chosen.delete(field);
    choose(field);
  }
  return {
    elements: [...levers, ...ticks, ...(fixed.length ? [h("h3", {}, "Findings fixed"), ...fixed] : [])],
    refuse(field, reason) {
      const element = reasons.get(field);
      if (!element) return;
      element.textContent = reason;
      element.hidden = !reason;
    },
  };
}

/** @param {URLSearchParams} chosen */
const fixedOf = (chosen) => (chosen.get("fixed") ?? "").split(",").filter(Boolean);

/**
 * @param {string} label
 * @param {boolean} checked
 * @param {(on: boolean) => void} change
 */
function tick(label, checked, change) {
  const input = /** @type {HTMLInputElement} */ (h("input", { type: "checkbox", checked, change: () => change(input.checked) }));
  return h("label", { class: "plan-check" }, input, label);
}

/**
 * @param {Control} control
 * @param {URLSearchParams} chosen
 * @param {(field: string) => void} choose
 */
function list({ field, name, values }, chosen, choose) {
  const select = /** @type {HTMLSelectElement} */ (
    h(
      "select",
      {
        "aria-label": name,
        change: () => {
          if (select.value) chosen.set(field, select.value);
          else chosen.delete(field);
          choose(field);
        },
      },
      ["", ...values].map((value) => h("option", { value, selected: value === (chosen.get(field) ?? "") }, value || NOW)),
    )
  );
  return h("label", {}, h("span", { "aria-hidden": "true" }, name), select);
}

/**
 * @param {Control} control
 * @param {URLSearchParams} chosen
 * @param {(field: string) => void} choose
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
        choose(field);
      },
    })
  );
  return h("div", {}, h("div", {}, h("span", {}, name), value), input);
}
