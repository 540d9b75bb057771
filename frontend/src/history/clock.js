// Times of day on an axis of hours.

import { clockTime, decimals } from "../format.js";

/** @typedef {import("../timeline/scale.js").Span} Span */

const HOUR = 3600;
/** Times of logs that have no clock begin with the job: none trains for three years, s. */
const WITHOUT_CLOCK = 1e8;
/** Distances between named times, s. */
const STEPS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 900, 1800, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, 24 * HOUR, 48 * HOUR, 168 * HOUR];

/**
 * "2026-11-23 09:05"; of a log without a clock, "0.4 h after the start".
 * @param {number} seconds since 1970, or since the job's begin
 */
export const instant = (seconds) => (seconds < WITHOUT_CLOCK ? `${decimals(seconds / HOUR, 1)}\u00a0h after the start` : clockTime(seconds));

/**
 * Times of day to name, about 90 pixels from each other, as the reader's clock has them; the first and midnights with the date.
 * @param {Span} span s
 * @param {number} width pixels
 */
export function clockTicks({ from, to }, width) {
  const least = ((to - from) * 90) / Math.max(width, 1);
  const step = STEPS.find((seconds) => seconds >= least) ?? STEPS[STEPS.length - 1];
  const hasClock = from >= WITHOUT_CLOCK;
  const shift = hasClock ? new Date(from * 1000).getTimezoneOffset() * 60 : 0;
  const first = Math.ceil((from - shift) / step) * step + shift;
  return Array.from({ length: Math.max(0, Math.floor((to - first) / step) + 1) }, (_, i) => {
    const at = first + i * step;
    if (!hasClock) return { at, text: `${decimals(at / HOUR, step < HOUR ? 2 : 0)}\u00a0h` };
    const [date, time] = new Date(at * 1000).toLocaleString("sv-SE").split(" ");
    const clock = step < 60 ? time : time.slice(0, 5);
    return { at, text: time === "00:00:00" ? date.slice(5) : i ? clock : `${date.slice(5)} ${clock}` };
  });
}
