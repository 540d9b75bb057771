// Made from tb_ddp_doctor/step_parts.toml by `python tests/generate.py`. The parts of a step, in their order.

/**
 * @typedef {object} Owner
 * @property {string} name
 * @property {string} when a nanosecond belongs to it
 * @property {string} whenOnCpu the same in a job without a GPU
 * @property {string} light its colour in the light theme
 * @property {string} dark
 * @property {string} ink of numbers on it
 */

/**
 * @typedef {object} Phase
 * @property {string} name
 * @property {string} when
 * @property {string} whenOnCpu the same in a job without a GPU
 * @property {string} colour the owner's whose it has
 */

/**
 * @typedef {object} MemoryPart
 * @property {string} name
 * @property {string} when memory is of it
 * @property {string} colour the owner's whose it has
 */

/** @type {Map<string, Owner>} */
export const OWNERS = new Map([
  ["compute", { name: "compute", when: "a kernel runs that is not communication", whenOnCpu: "an operator runs that is not communication", light: "#21489c", dark: "#4d7de8", ink: "on-owner" }],
  ["copy", { name: "copy", when: "only copies or memsets run", whenOnCpu: "only copies or memsets run", light: "#4f6b0c", dark: "#c5e0c2", ink: "on-owner" }],
  ["wait", { name: "straggler wait", when: "only communication runs, and some rank has not arrived", whenOnCpu: "only communication runs, and some rank has not arrived", light: "#e6731f", dark: "#e9a346", ink: "on-light" }],
  ["transfer", { name: "exposed communication", when: "only communication runs, and all ranks have arrived", whenOnCpu: "only communication runs, and all ranks have arrived", light: "#008080", dark: "#58c3a2", ink: "on-owner" }],
  ["input", { name: "input", when: "GPU idle, CPU in the DataLoader's __next__", whenOnCpu: "CPU in the DataLoader's __next__", light: "#8058e2", dark: "#8895c4", ink: "on-owner" }],
  ["sync", { name: "sync", when: "GPU idle, CPU in cuda*Synchronize, .item() or another blocking call", whenOnCpu: "CPU in a blocking call", light: "#831567", dark: "#d8abf6", ink: "on-owner" }],
  ["alloc", { name: "allocation", when: "GPU idle, CPU in cudaMalloc or cudaFree", whenOnCpu: "CPU allocates device memory", light: "#52361c", dark: "#be8403", ink: "on-owner" }],
  ["dispatch", { name: "launch-bound (CPU overhead)", when: "GPU idle, CPU in an operator or a launch", whenOnCpu: "CPU in a call that starts or awaits a collective, with none running", light: "#d2bf1a", dark: "#f5d660", ink: "on-light" }],
  ["host", { name: "CPU outside any op", when: "GPU idle, CPU outside any op (Python, I/O, GC)", whenOnCpu: "CPU outside any op (Python, I/O, GC), or without a core", light: "#d42e59", dark: "#d85278", ink: "on-owner" }],
]);

/** Owners of time in which the GPU idles. @type {Set<string>} */
export const IDLE = new Set(["input", "sync", "alloc", "dispatch", "host"]);

/** @type {Map<string, Phase>} */
export const PHASES = new Map([
  ["loading", { name: "loading", when: "waiting for a batch, or copying it to the GPU", whenOnCpu: "waiting for a batch", colour: "input" }],
  ["forward", { name: "forward", when: "forward, and the GPU work it launched", whenOnCpu: "forward", colour: "compute" }],
  ["backward", { name: "backward", when: "backward, and the GPU work it launched, with the collectives of gradients", whenOnCpu: "backward, with the collectives of gradients", colour: "transfer" }],
  ["optimizer", { name: "optimizer", when: "the optimizer's step, and the GPU work it launched", whenOnCpu: "the optimizer's step", colour: "dispatch" }],
  ["other", { name: "other", when: "outside forward/backward/optimizer, in the training loop", whenOnCpu: "outside forward/backward/optimizer, in the training loop", colour: "alloc" }],
]);

/** @type {Map<string, MemoryPart>} */
export const MEMORY = new Map([
  ["parameters", { name: "parameters", when: "as many bytes as the gradients, allocated before the steps", colour: "compute" }],
  ["gradients", { name: "gradients", when: "allocated in backward, and not released in it", colour: "transfer" }],
  ["optimizer_states", { name: "optimizer states", when: "what the optimizer keeps for each parameter (Adam: two tensors)", colour: "sync" }],
  ["activations", { name: "activations", when: "allocated in loading or forward, and kept for backward", colour: "dispatch" }],
  ["temporary", { name: "temporary", when: "allocated and released within one phase", colour: "copy" }],
  ["communication", { name: "communication buffers", when: "DDP's buckets, gathered parameters, gradients to scatter", colour: "input" }],
  ["other", { name: "other", when: "buffers, workspaces, frozen parameters, and what else stays", colour: "alloc" }],
]);
