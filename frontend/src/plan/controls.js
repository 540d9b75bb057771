// What of a job can be otherwise, as sliders, choices and ticks. What is chosen is kept as the query of the server's route.

import { h } from "../dom.js";
import { ms } from "../format.js";
import { mark } from "../verdict/badge.js";
import { meshesOf } from "./meshes.js";
import { labelled, NOW, nowOf, shownStop, stopsOf, written } from "./stops.js";

/**
 * A slider over some values, with the record's among them; with `choice`, all of them as a list.
 * @typedef {{field: string, name: string, unit: string, values: string[], choice?: boolean}} Control
 */

/** @type {Control[]} */
const CONTROLS = [
  { field: "bucket_mb", name: "Bucket size", unit: "MiB", values: ["0.25", "0.5", "1", "2", "5", "10", "25", "50", "100"] },
  { field: "dtype", name: "Gradients' dtype", unit: "", values: ["float32", "bfloat16", "float8"] },
  { field: "links", name: "Links, times as fast", unit: "×", values: ["0.5", "2", "4", "8"] },
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
  ["gathers_in_time", "All-gathers never wait for the CPU"],
  ["offload", "Shards on the CPU"],
  ["graphs", "Launch by CUDA graphs"],
];
const AS_NOW = "as now";
/** Fields that change nothing until another one is chosen. @type {Record<string, string>} */
const NEEDS = { prefetch: "sharding", offload: "sharding", strong: "ranks" };

/** Names of fields, for curves and refusals. @type {Map<string, string>} */
export const NAMES = new Map([...CONTROLS.map(({ field, name }) => /** @type {[string, string]} */ ([field, name])), ["mesh", "Mesh"]]);

/**
 * What a control does besides being shown.
 * @typedef {{element: HTMLElement, input: HTMLInputElement | HTMLSelectElement, place?: (plan: import("../../schema.js").PlanResult) => void}} Lever
 */

/**
 * @param {URLSearchParams} chosen
 * @param {import("../model.js").Diagnosis} diagnosis
 * @param {(field: string) => void} choose
 */
export function controls(chosen, diagnosis, choose) {
  /** @type {Map<string, Lever>} */
  const levers = new Map();
  /** Why a field has no answer. @type {Map<string, string>} */
  const refused = new Map();
  const picked = (/** @type {string} */ field, /** @type {string} */ value) => {
    if (value) chosen.set(field, value);
    else chosen.delete(field);
    lock();
    choose(field);
  };
  const meshes = meshesOf(diagnosis.mesh);
  /** @type {Control[]} */
  const ofMesh = meshes.length ? [{ field: "mesh", name: "Mesh, as many ranks", unit: "", values: meshes, choice: true }] : [];
  for (const control of [...CONTROLS, ...ofMesh]) levers.set(control.field, (control.choice ? list : slider)(control, chosen, picked));
  for (const [field, label] of TICKS) levers.set(field, tick([label], chosen.has(field), (on) => picked(field, on ? "1" : "")));
  lock();

  /** What cannot act is disabled, and says why; what was chosen before can be taken back. */
  function lock() {
    for (const [field, { element, input }] of levers) {
      const other = NEEDS[field];
      const reason = refused.get(field) ?? (other && !chosen.has(other) ? `Acts with ${(NAMES.get(other) ?? other).toLowerCase()} only.` : "");
      input.disabled = Boolean(reason) && !chosen.has(field);
      element.classList.toggle("disabled", input.disabled);
      element.querySelector(".plan-reason")?.remove();
      if (reason) element.append(because(reason));
    }
  }

  const fixes = diagnosis.findings.filter(({ cost_ms, alone_ms }) => cost_ms > 0 || alone_ms > 0);
  const fixed = fixes.map(({ id, rule, cost_ms }) =>
    tick([mark(diagnosis, id), ` ${rule}`, h("small", { "data-quantity": "cost" }, cost_ms > 0 ? ms(cost_ms) : "")], fixedOf(chosen).some((one) => one === id || one === rule), (on) => {
      // A rule stands for all its findings.
      const others = fixes.filter((one) => one.id !== id && fixedOf(chosen).some((name) => name === one.id || name === one.rule)).map((one) => one.id);
      picked("fixed", (on ? [...others, id] : others).join(","));
    }).element,
  );
  return {
    elements: [...(fixed.length ? [h("h3", {}, "Findings fixed"), ...fixed, h("h3", {}, "And besides")] : []), ...[...levers.values()].map(({ element }) => element)],
    /** @param {string} field @param {string} reason */
    refuse(field, reason) {
      refused.set(field, reason);
      lock();
    },
    /** Put "now" where the record is. @param {import("../../schema.js").PlanResult} plan */
    place(plan) {
      for (const { place } of levers.values()) place?.(plan);
    },
  };
}

/**
 * What is ticked at first: the findings of the verdict, as on the Verdict itself.
 * @param {import("../model.js").Diagnosis} diagnosis
 */
export function atFirst({ findings }) {
  const ids = findings.filter(({ severity, cost_ms }) => severity !== "info" && cost_ms > 0).map(({ id }) => id);
  return new URLSearchParams(ids.length ? { fixed: ids.join(",") } : {});
}

/** @param {URLSearchParams} chosen */
const fixedOf = (chosen) => (chosen.get("fixed") ?? "").split(",").filter(Boolean);

/** Why a control is disabled: a few words, or folded. @param {string} reason */
function because(reason) {
  return reason.length < 40 ? h("p", { class: "plan-reason" }, reason) : h("details", { class: "plan-reason" }, h("summary", {}, "Not known from this record"), reason);
}

/**
 * @param {import("../dom.js").Child[]} label
 * @param {boolean} checked
 * @param {(on: boolean) => void} change
 * @returns {Lever}
 */
function tick(label, checked, change) {
  const input = /** @type {HTMLInputElement} */ (h("input", { type: "checkbox", checked, change: () => change(input.checked) }));
  return { element: h("div", {}, h("label", { class: "plan-check" }, input, h("span", {}, label))), input };
}

/**
 * @param {Control} control
 * @param {URLSearchParams} chosen
 * @param {(field: string, value: string) => void} pick
 * @returns {Lever}
 */
function list({ field, name, values }, chosen, pick) {
  const options = ["", ...values].map((value) => h("option", { value, selected: value === (chosen.get(field) ?? "") }, value || AS_NOW));
  const input = /** @type {HTMLSelectElement} */ (h("select", { "aria-label": name, change: () => pick(field, input.value) }, options));
  return { element: h("div", { class: "plan-slider" }, h("label", {}, h("span", { "aria-hidden": "true" }, name), input)), input };
}

/**
 * @param {Control} control
 * @param {URLSearchParams} chosen
 * @param {(field: string, value: string) => void} pick
 * @returns {Lever}
 */
function slider({ field, name, unit, values }, chosen, pick) {
  /** @type {string[]} */
  let stops = [];
  let now = "";
  const value = h("b");
  const ticks = h("div", { class: "plan-ticks", "aria-hidden": "true" });
  const input = /** @type {HTMLInputElement} */ (
    h("input", {
      type: "range",
      min: 0,
      step: 1,
      "aria-label": name,
      input: () => {
        pick(field, stops[Number(input.value)]);
        tell();
      },
    })
  );
  place(null);
  return { element: h("div", { class: "plan-slider" }, h("div", {}, h("span", {}, name), value), input, ticks), input, place };

  function tell() {
    const shown = chosen.get(field) ?? "";
    value.textContent = shown ? `${shownStop(shown)} ${unit}`.trim() : now ? `now ${now}` : AS_NOW;
    input.setAttribute("aria-valuetext", value.textContent);
  }

  /** @param {import("../../schema.js").PlanResult | null} plan */
  function place(plan) {
    const has = nowOf(field, plan);
    now = written(has, unit);
    stops = stopsOf(values, has);
    input.max = String(stops.length - 1);
    input.value = String(Math.max(stops.indexOf(chosen.get(field) ?? NOW), 0));
    const at = (/** @type {number} */ stop) => `left: ${(100 * stop) / (stops.length - 1)}%`;
    ticks.replaceChildren(
      ...stops.map((stop, i) => h("i", { class: stop === NOW ? "now" : null, style: at(i) })),
      ...labelled(stops).map(([i, label]) => h("span", { class: label === "now" ? "now" : null, style: at(i) }, label)),
    );
    tell();
  }
}
