// Times of day on an axis of hours.

/** @typedef {import("../timeline/scale.js").Span} Span */

const HOUR = 3600;
/** Distances between named times, s. */
const STEPS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 900, 1800, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, 24 * HOUR, 48 * HOUR, 168 * HOUR];

/**
 * Times of day to name, about 90 pixels from each other, as the reader's clock has them; the first and midnights with the date.
 * @param {Span} span s
 * @param {number} width pixels
 */
export function clockTicks({ from, to }, width) {
  const least = ((to - from) * 90) / Math.max(width, 1);
  const step = STEPS.find((seconds) => seconds >= least) ?? STEPS[STEPS.length - 1];
  const shift = new Date(from * 1000).getTimezoneOffset() * 60;
  const first = Math.ceil((from - shift) / step) * step + shift;
  return Array.from({ length: Math.max(0, Math.floor((to - first) / step) + 1) }, (_, i) => {
    const at = first + i * step;
    const [date, time] = new Date(at * 1000).toLocaleString("sv-SE").split(" ");
    const clock = step < 60 ? time : time.slice(0, 5);
    return { at, text: time === "00:00:00" ? date.slice(5) : i ? clock : `${date.slice(5)} ${clock}` };
  });
}
