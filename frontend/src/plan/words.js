// What a plan says in words: the prediction, what scales and breaks, what it rests on, what is refused, what to write.

import { folded, h } from "../dom.js";
import { decimals, ms, percent, range, signed } from "../format.js";
import { NAMES } from "./controls.js";
import { table } from "../table.js";

/** @typedef {import("../../schema.js").Prediction} Prediction */
/** @typedef {import("../../schema.js").Refusal} Refusal */
/** @typedef {import("../../schema.js").RankBytes} RankBytes */

/**
 * @param {Prediction} prediction
 * @param {number} now ms
 */
export function sentence({ step_ms, low_ms, high_ms, change_ms }, now) {
  const share = now > 0 ? Math.abs(change_ms) / now : 0;
  return `${ms(step_ms)} a step instead of ${ms(now)}: ${percent(share)} ${change_ms <= 0 ? "less" : "more"} (${signed(change_ms, 1)} ms, range ${range(low_ms, high_ms)}).`;
}

/**
 * What is predicted besides the step.
 * @param {import("../../schema.js").PlanResult} plan
 */
export function besides({ prediction, rank_bytes }) {
  const told = [];
  if (prediction?.scaling) {
    const { efficiency, algorithms } = prediction.scaling;
    const quickest = algorithms.length ? ` Quickest AllReduce: ${quick(algorithms)}.` : "";
    told.push(`Efficiency ${percent(efficiency)} of one rank's.${quickest}`);
  }
  if (prediction?.rank_bytes && rank_bytes) told.push(`Each rank has ${held(prediction.rank_bytes)}; now ${held(rank_bytes)}.`);
  return told.map((text) => h("p", { class: "note" }, text));
}

/** @param {import("../../schema.js").Algorithm[]} algorithms */
const quick = (algorithms) => algorithms.map(({ name, from_bytes }) => (from_bytes ? `${name} from ${size(from_bytes)}` : name)).join(", ");

/** @param {RankBytes} bytes */
function held({ parameters, gradients, optimizer_states, gathered, on_cpu, sent }) {
  const cpu = on_cpu ? `, ${size(on_cpu)} on the CPU` : "";
  return `${size(parameters + gradients + optimizer_states + gathered)} of states${cpu} and sends ${size(sent)} a step`;
}

/** @param {number} bytes */
function size(bytes) {
  const [unit, one] = /** @type {[string, number]} */ ([["GB", 1e9], ["MB", 1e6], ["KB", 1e3]].find(([, least]) => bytes >= Number(least)) ?? ["bytes", 1]);
  return `${decimals(bytes / one, one > 1 ? 1 : 0)}\u00a0${unit}`;
}

/** @param {import("../../schema.js").PlanCurve | undefined} curve */
export function breaking(curve) {
  const breaks = curve?.breaks;
  if (!breaks) return "";
  const searched = `up to ${breaks.searched_to} ranks`;
  const efficiency = breaks.inefficient_from ? `Efficiency is below ${percent(breaks.efficiency)} from ${breaks.inefficient_from} ranks on` : `Efficiency stays above ${percent(breaks.efficiency)} ${searched}`;
  const hidden = breaks.exposed_from ? `communication takes longer than the backward pass, which could hide it, from ${breaks.exposed_from} ranks on` : `the backward pass is longer than communication ${searched}`;
  return `${efficiency}; ${hidden}.`;
}

/**
 * The recorded buckets, a sentence and a table.
 * @param {import("../../schema.js").Buckets | null} found
 */
export function bucketsOf(found) {
  if (!found) return [];
  const { buckets, layers, bytes, mean_bytes, gradients } = found;
  const ending = buckets.filter(({ ends_with_layer }) => ends_with_layer).length;
  const aligned = layers ? ` ${ending} of ${buckets.length} end where one of ${layers} layers ends (sizes of gradients that repeat).` : "";
  const rows = buckets.map(({ bytes: own, gradients: count, first_module, last_module, first_layer, last_layer, ends_with_layer, ends_with_module }, i) => [
    `${i + 1}`,
    size(own),
    `${count}`,
    first_layer === null ? [first_module, last_module].filter(Boolean).join(" to ") : first_layer === last_layer ? `${first_layer}` : `${first_layer} to ${last_layer}`,
    (ends_with_layer ?? ends_with_module) === null ? "" : (ends_with_layer ?? ends_with_module) ? "yes" : "no",
  ]);
  return [
    h("p", { class: "note" }, `As recorded: ${buckets.length} ${buckets.length === 1 ? "bucket" : "buckets"} (mean ${size(mean_bytes)}) of ${gradients} gradients, ${size(bytes)}.${aligned}`),
    folded("Recorded buckets", () => table(["bucket", "bytes", "gradients", "layers, from the last", "ends with a layer"], rows, "recorded buckets")),
  ];
}

/**
 * @param {Prediction | null} prediction
 * @param {Refusal[]} refusals
 */
export function restsOf(prediction, refusals) {
  const found = prediction?.rests ?? [];
  const refused = refusals.map(({ question, reason, values }) => ({ basis: "refused", what: `${NAMES.get(question) ?? question} ${values.join(", ")}`.trim(), detail: reason }));
  if (!found.length && !refused.length) return [h("p", { class: "note" }, "The recorded steps.")];
  return [
    h(
      "dl",
      { class: "plan-rests" },
      [...found, ...refused].flatMap(({ basis, what, detail }) => [h("dt", { class: basis }, basis), h("dd", {}, h("b", {}, `${what}: `), detail)]),
    ),
  ];
}

/** What FSDP is called with for each way to shard. @type {Record<string, string[]>} */
const SHARDED = {
  zero1: ["from torch.distributed.optim import ZeroRedundancyOptimizer", "optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4)"],
  zero2: ["for block in model.blocks:", "    fully_shard(block, reshard_after_forward=False)", "fully_shard(model, reshard_after_forward=False)"],
  zero3: ["for block in model.blocks:", "    fully_shard(block)", "fully_shard(model)"],
  hsdp: ['mesh = init_device_mesh("cuda", (nodes, gpus_per_node), mesh_dim_names=("replicate", "shard"))', "for block in model.blocks:", "    fully_shard(block, mesh=mesh)", "fully_shard(model, mesh=mesh)"],
};

/**
 * What to write into the training script, "" where nothing is.
 * @param {URLSearchParams} chosen
 */
export function codeOf(chosen) {
  const bucket = chosen.get("bucket_mb");
  const sharding = SHARDED[chosen.get("sharding") ?? ""];
  const lines = sharding ? [...sharding] : bucket ? [`model = DistributedDataParallel(model, bucket_cap_mb=${bucket})`] : [];
  if (chosen.has("prefetch") || chosen.has("gathers_in_time")) {
    lines.push("for block, following in zip(blocks, blocks[1:]):", "    block.set_modules_to_forward_prefetch([following])", "    following.set_modules_to_backward_prefetch([block])");
  }
  const mesh = new Map((chosen.get("mesh") ?? "").split(",").map((part) => /** @type {[string, string]} */ (part.split("="))));
  if (chosen.has("mesh")) lines.push(`--tensor-model-parallel-size ${mesh.get("tp") ?? 1} --pipeline-model-parallel-size ${mesh.get("pp") ?? 1}  # Megatron-LM; data parallelism takes what is left, ${mesh.get("dp") ?? 1}`);
  if (chosen.has("offload")) lines.push("fully_shard(model, offload_policy=CPUOffloadPolicy())");
  if (chosen.get("dtype") === "bfloat16") {
    lines.push("from torch.distributed.algorithms.ddp_comm_hooks import default_hooks", "model.register_comm_hook(None, default_hooks.bf16_compress_hook)");
  }
  if (chosen.has("accumulate")) lines.push("with model.no_sync():  # all but the last pass", "    loss(model(micro_batch)).backward()");
  if (chosen.has("workers")) lines.push(`loader = DataLoader(dataset, num_workers=${chosen.get("workers")}, persistent_workers=True)`);
  if (chosen.has("graphs")) lines.push('model = torch.compile(model, mode="reduce-overhead")');
  return lines.join("\n");
}
