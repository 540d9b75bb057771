// What the page shows as a part of TensorBoard's own address, so that a colleague with the link sees the same:
//
//   #ddp_doctor&p.ddp_doctor.run=NAME&p.ddp_doctor.view=budget&p.ddp_doctor.order=busy
//
// TensorBoard leaves alone what stands behind the name of its tab. It drops values with a "=" in them: all are encoded.

/** @typedef {Record<string, string>} Place what the page shows: `run`, `view`, and what that view keeps */

const TAB = "ddp_doctor";
const PREFIX = `p.${TAB}.`;

/**
 * @param {string} hash of an address
 * @returns {Place | null} null if it is the address of another tab
 */
export function parse(hash) {
  const [tab, ...pairs] = hash.replace(/^#/, "").split("&");
  if (tab !== TAB) return null;
  /** @type {Place} */
  const place = {};
  for (const pair of pairs) {
    const [key, value] = pair.split("=");
    if (key.startsWith(PREFIX) && value) place[key.slice(PREFIX.length)] = decoded(value);
  }
  return place;
}

/** @param {Place} place */
export function hashOf(place) {
  const pairs = Object.entries(place).filter(([, value]) => value);
  return `#${[TAB, ...pairs.map(([key, value]) => `${PREFIX}${key}=${encodeURIComponent(value)}`)].join("&")}`;
}

/** @param {string} value */
function decoded(value) {
  try {
    return decodeURIComponent(value);
  } catch {
    return value; // typed by hand, with a % of its own
  }
}

/** The window whose address people copy: TensorBoard's, or this one where it is framed by a stranger. */
function host() {
  try {
    void parent.location.hash;
    return parent;
  } catch {
    return window;
  }
}

/** @returns {Place} */
export const here = () => parse(host().location.hash) ?? {};

/**
 * The whole address of a place.
 * @param {Place} place
 */
export const linkTo = (place) => host().location.href.replace(/#.*$/, "") + hashOf(place);

/**
 * Write a place into the address. A `step` is one that the browser's Back button goes back over.
 * @param {Place} place
 * @param {{step: boolean}} how
 */
export function write(place, { step }) {
  const { history, location } = host();
  if (location.hash === hashOf(place)) return;
  if (step) history.pushState(history.state, "", hashOf(place));
  else history.replaceState(history.state, "", hashOf(place));
}

/**
 * Call back when someone goes back, forward, or types another address. Another tab of TensorBoard is none of ours,
 * and its own link to this one says nothing.
 * @param {(place: Place) => void} changed
 */
export function follow(changed) {
  host().addEventListener("hashchange", () => {
    const place = parse(host().location.hash);
    if (place && Object.keys(place).length) changed(place);
  });
}

/**
 * Go to another place, as a link to it does.
 * @param {Place} changes of the place that shows
 */
export const go = (changes) => {
  host().location.hash = hashOf({ ...here(), ...changes });
};
