// What the roofline has of each kernel, in words; pure.

import { plainName } from "../timeline/rows.js";

/**
 * Calls of one operator with the same inputs; per step, mean over ranks and steps.
 * @typedef {object} Kernel
 * @property {string} name of its longest kernel
 * @property {string} operator "" if unknown
 * @property {string} inputs sizes of the first tensors, "" if unknown
 * @property {string} dtype
 * @property {string} kind class of kernels, or "not modelled"
 * @property {number} calls
 * @property {number} ms
 * @property {number | null} attainable_ms null where it is not modelled
 * @property {number} flops of one call
 * @property {number} bytes that one call has to move
 * @property {string} limit "compute", "memory" or "launch"; "" if unknown
 * @property {number} flops_per_s
 * @property {number} bytes_per_s
 * @property {number} peak_flops
 * @property {boolean} fits_cache
 * @property {number} rank of the longest call, which is from and to so many us after the first step's start
 * @property {number} from_us
 * @property {number} to_us
 */

/**
 * @typedef {object} Roofline
 * @property {string} device
 * @property {number} bandwidth bytes per second; 0 if unknown
 * @property {Object<string, number>} peaks FLOPS by precision
 * @property {string[]} notes
 * @property {number} left_out kernels that are not sent
 * @property {Kernel[]} kernels those with most time above attainable first
 */

/** The colour of each class, an owner's. @type {Map<string, string>} */
export const COLOURS = new Map([
  ["GEMM", "compute"],
  ["convolution", "sync"],
  ["attention", "input"],
  ["normalisation and reduction", "transfer"],
  ["elementwise", "dispatch"],
  ["copy and cast", "copy"],
  ["optimizer", "alloc"],
]);

/** @param {Kernel} kernel */
export const colourOf = ({ kind }) => COLOURS.get(kind) ?? "host";

/** @param {Kernel} kernel */
export const nameOf = ({ operator, name }) => operator.split("::").pop() || plainName(name);

/** @param {Kernel} kernel */
export const aboveOf = ({ ms, attainable_ms }) => (attainable_ms === null ? null : Math.max(0, ms - attainable_ms));

/** @param {Kernel} kernel */
export const shareOf = ({ ms, attainable_ms }) => (attainable_ms === null || !(ms > 0) ? null : attainable_ms / ms);

/**
 * What it reaches of what limits it: "787 GB/s" or "520 TFLOPS"; "" if that is not known.
 * @param {Kernel} kernel
 */
export function rateOf({ limit, flops_per_s, bytes_per_s }) {
  if (!limit) return "";
  return limit === "compute" ? `${short(flops_per_s / 1e12)}\u00a0TFLOPS` : `${short(bytes_per_s / 1e9)}\u00a0GB/s`;
}

/**
 * What a call, or a module, has to do: "64 GFLOP, 101 MB"; "" if that is not known.
 * @param {Pick<Kernel, "flops" | "bytes">} work
 */
export const workOf = ({ flops, bytes }) => [flops && `${short(flops / 1e9)}\u00a0GFLOP`, bytes && `${short(bytes / 1e6)}\u00a0MB`].filter(Boolean).join(", ");

/** Two digits of what is below 1: "0.01", and not "0". @param {number} value */
export const short = (value) => value.toLocaleString("en", value < 1 ? { maximumSignificantDigits: 2 } : { maximumFractionDigits: value < 10 ? 1 : 0 });

/**
 * Those that compute something, as points: FLOP per byte, and FLOP per second.
 * @param {Kernel[]} kernels
 */
export const points = (kernels) =>
  kernels
    .filter(({ flops, bytes, flops_per_s }) => flops > 0 && bytes > 0 && flops_per_s > 0)
    .map((kernel) => ({ kernel, intensity: kernel.flops / kernel.bytes, rate: kernel.flops_per_s }));
