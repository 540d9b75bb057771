// Where the timeline is to open: the address of a step, of an owner's time, or of an event's name. Pure.

import { mean } from "../model.js";

/** @typedef {import("../address.js").Place} Place */
/** @typedef {import("../model.js").Views} Views */

/** Room at both sides of what is to be seen, as a share of it. */
const ROOM = 0.04;

/**
 * The step of a rank; null where that is not known.
 * @param {Views} views
 * @param {number} rank
 * @param {number} step
 * @returns {Place | null}
 */
export function ofStep(views, rank, step) {
  const [row, column] = [views.ranks.indexOf(rank), views.steps.indexOf(step)];
  const [start, length] = [views.clock_ms[row]?.[column], views.step_ms[row]?.[column]];
  if (start === null || start === undefined || !length) return null;
  return { ...span(start * 1000, (start + length) * 1000), ranks: withTypical(views, rank) };
}

/**
 * The step in which a rank has most of an owner's time, with its longest stretch of that; null where it has none.
 * @param {Views} views
 * @param {number} rank
 * @param {string} owner
 * @param {number | null} step the selected one, if any
 * @returns {Place | null}
 */
export function ofOwner(views, rank, owner, step) {
  const values = views.budget_ms[owner]?.[views.ranks.indexOf(rank)] ?? [];
  const most = values.reduce((best, value, i) => ((value ?? 0) > (values[best] ?? 0) ? i : best), 0);
  const chosen = step !== null && views.steps.includes(step) ? step : views.steps[most];
  const place = values[most] > 0 ? ofStep(views, rank, chosen) : null;
  return place && { ...place, rank: String(rank), owner };
}

/**
 * An instant of the common clock and some time from there on.
 * @param {number} from us after the origin
 * @param {number} to
 * @returns {Place}
 */
export function span(from, to) {
  const room = ROOM * (to - from);
  return { from: String(Math.floor(from - room)), to: String(Math.ceil(to + room)) };
}

/**
 * A rank, and beside it the one of median busy time.
 * @param {Views} views
 * @param {number} rank
 */
function withTypical({ ranks, busy_ms }, rank) {
  const others = ranks.flatMap((other, i) => (other === rank ? [] : [{ other, busy: mean(busy_ms[i]) }])).sort((a, b) => a.busy - b.busy);
  const middle = others[Math.floor((others.length - 1) / 2)];
  return middle ? `${rank},${middle.other}` : String(rank);
}
