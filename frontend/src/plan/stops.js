// Where a slider of the plan can stop: the values to choose from in their order, with that of the record in its place.
// Pure.

/** @typedef {{least: number, most: number}} Now what the record has: all numbers from one to the other come to the same */

/** dtypes as PyTorch's records call them, and as the plan does. @type {Record<string, string>} */
const DTYPES = { float: "float32", half: "float16", bfloat16: "bfloat16" };

/** The stop of the record. */
export const NOW = "";

/**
 * The stops in their order. Values that are what the record has are its own stop; where it is not known what that is, it
 * stands first.
 * @param {string[]} values
 * @param {Now | string | null} now
 */
export function stopsOf(values, now) {
  if (typeof now === "string") return values.includes(now) ? values.map((value) => (value === now ? NOW : value)) : [NOW, ...values];
  if (!now) return [NOW, ...values];
  const less = values.filter((value) => Number(value) < now.least);
  return [...less, NOW, ...values.filter((value) => Number(value) > now.most)];
}

/**
 * What the record of a plan has for a field.
 * @param {string} field
 * @param {import("../../schema.js").PlanResult | null} plan null before the first answer
 * @returns {Now | string | null}
 */
export function nowOf(field, plan) {
  if (field === "links") return { least: 1, most: 1 };
  if (!plan) return null;
  if (field === "ranks") return { least: plan.world_size, most: plan.world_size };
  if (field === "dtype") return DTYPES[plan.buckets?.dtype.toLowerCase() ?? ""] ?? null;
  const cap = field === "bucket_mb" && plan.buckets?.cap_mb;
  return cap ? { least: cap[0], most: cap[1] ?? Infinity } : null;
}

/**
 * What the record has, in words: "1,024", "4.52 to 5.02 MiB"; "" where that is not known.
 * @param {Now | string | null} now
 * @param {string} unit
 */
export function written(now, unit) {
  if (!now || typeof now === "string") return now ?? "";
  const number = (/** @type {number} */ value) => (value < 1000 ? String(Number(value.toPrecision(3))) : Math.round(value).toLocaleString("en"));
  const [least, most] = [`${number(now.least)} ${unit}`.trim(), `${number(now.most)} ${unit}`.trim()];
  if (now.most === Infinity) return `${least} or more`;
  return now.least === now.most ? least : `${number(now.least)} to ${most}`;
}

/** A stop as it is shown: "1,024"; what is no large number as it is. @param {string} stop */
export const shownStop = (stop) => (/^\d{4,}$/.test(stop) ? Number(stop).toLocaleString("en") : stop);

/** Labels of a slider stand no nearer than this share of its width. */
const APART = 0.14;

/**
 * The stops that have a label below the slider: the record's, and the first and last one where there is room.
 * @param {string[]} stops
 * @returns {[number, string][]} place and label
 */
export function labelled(stops) {
  const last = stops.length - 1;
  const at = stops.indexOf(NOW);
  const far = (/** @type {number} */ place) => Math.abs(place - at) / last >= APART;
  return [...(far(0) ? [/** @type {[number, string]} */ ([0, shownStop(stops[0])])] : []), [at, "now"], ...(far(last) ? [/** @type {[number, string]} */ ([last, shownStop(stops[last])])] : [])];
}
