// What is drawn of each rank, as rows. An opened rank has its host threads and its streams, as the route `slice` answers
// in columns, one row for each depth of nesting, and a row of what its GPU idles for; a folded one has one row of its
// time by owner, as the route `lanes` answers. Times become us after the report's origin, so that answers fit each other.

import { ownerName } from "../model.js";
import { IDLE } from "../step_parts.js";
import { firstAbove } from "./cull.js";
import { curvesOf, heightOf } from "./curves.js";

/**
 * @typedef {object} Lane
 * @property {string} title
 * @property {"main" | "autograd" | "thread" | "stream"} role
 * @property {number[]} start_us
 * @property {number[]} length_us
 * @property {number[]} depth
 * @property {number[]} name
 * @property {number[]} owner
 * @property {number[]} collective
 * @property {number[]} module
 * @property {number[]} launch
 */

/** @typedef {{rank: number, node: string, owner: number[], start_us: number[], length_us: number[]}} RankLane */
/** @typedef {{start_ns: string, end_ns: string, owners: string[], ranks: RankLane[]}} RankLanes */

/**
 * @typedef {object} Slice
 * @property {string} start_ns
 * @property {string} end_ns
 * @property {string[]} owners
 * @property {Record<string, {kind: string, group: string, bytes: number, size: number, last_rank: number, last_us: number, transfer_us: number, bus_factor: number}>} collectives
 * @property {{title: string, rank: number, start_us: number, end_us: number, what: string}[]} labels
 * @property {string} left_out
 * @property {{rank: number, node: string, left_out: number, names: string[], modules: string[], memory: {time_us: number[], allocated: number[], reserved: number[]}, gpu: {time_us: number[], sm_mhz: (number | null)[], power_w: (number | null)[]}, lanes: Lane[]}[]} ranks
 */

/**
 * @typedef {object} Row events that follow each other
 * @property {number} rank
 * @property {string} title of its lane; "" for the deeper rows of one
 * @property {string} lane
 * @property {"host" | "device" | "budget"} paint how its owners are painted
 * @property {boolean} folded whether it is all that shows of its rank
 * @property {number} top CSS pixels
 * @property {number} height
 * @property {Float64Array} starts us after the origin
 * @property {Float64Array} ends
 * @property {string[]} names
 * @property {Int32Array} name
 * @property {string[]} owners
 * @property {Int32Array} owner
 * @property {Int32Array} collective
 * @property {string[]} modules paths
 * @property {Int32Array} module
 * @property {Int32Array} launch
 */

/** @typedef {{rank: number, node: string, top: number, height: number, folded: boolean}} Block the rows of a rank */
/** @typedef {{key: string, kind: string, group: string, bytes: number, size: number, transfer: number, bus_factor: number, last: number, last_rank: number, arrivals: {rank: number, at: number, y: number}[]}} Joined */
/** @typedef {{title: string, rank: number, from: number, to: number, what: string}} Label */
/** @typedef {{from: number, to: number, rows: Row[], blocks: Block[], joined: Map<string, Joined>, labels: Label[], curves: import("./curves.js").Curve[], height: number, hidden: number, slice: Slice, shift: number}} Laid: `hidden` counts short events that the slice does not have */

const HOST_HEIGHT = 13;
const DEVICE_HEIGHT = 16;
const BLOCK_GAP = 12;
const NAME_HEIGHT = 18;
/** A folded rank, and what is below it. */
const FOLDED_HEIGHT = 15;
const FOLDED_GAP = 3;
/** Below the rows of an opened rank, for the critical path. */
const PATH_HEIGHT = 9;
/** Times that differ by less are the same one, counted from another start: traces count in ns. */
const SAME_US = 0.0005;

/**
 * How many levels of nesting show: what fits a screen.
 * @param {number} ranks
 */
const depthsOf = (ranks) => (ranks <= 2 ? 5 : ranks <= 4 ? 3 : ranks <= 8 ? 2 : 1);

/**
 * ns of a text after an origin, as us.
 * @param {string} ns
 * @param {string} origin
 */
export const usAfter = (ns, origin) => Number(BigInt(ns) - BigInt(origin)) / 1e3;

/**
 * @param {Slice} slice of the opened ranks
 * @param {string} origin ns
 * @param {RankLanes | null} [lanes] of them and of the folded ones, in the same window; null where there are none
 * @param {number[]} [order] of the opened ranks, from above
 * @returns {Laid}
 */
export function laidOut(slice, origin, lanes = null, order = slice.ranks.map(({ rank }) => rank)) {
  const shift = usAfter(slice.start_ns, origin);
  const to = usAfter(slice.end_ns, origin);
  const depths = depthsOf(slice.ranks.length);
  /** @type {Row[]} */
  const rows = [];
  /** @type {Block[]} */
  const blocks = [];
  /** @type {import("./curves.js").Curve[]} */
  const curves = [];
  let top = 0;
  const add = (/** @type {Row} */ row) => {
    row.top = top;
    top += row.height;
    rows.push(row);
  };
  const opened = [...slice.ranks].sort((a, b) => order.indexOf(a.rank) - order.indexOf(b.rank));
  for (const rank of opened) {
    const start = top;
    top += NAME_HEIGHT;
    for (const lane of rank.lanes) {
      // Other threads neither train nor walk the graph; and a launch may lie long before the window.
      if (lane.role === "thread" || !shows(lane, to - shift)) continue;
      for (const row of split(lane, rank, slice.owners, shift, depths)) add(row);
      top += 3;
    }
    const lane = lanes?.ranks.find((one) => one.rank === rank.rank);
    if (lanes && lane) {
      const hasDevice = rank.lanes.some(({ role }) => role === "stream");
      add(budgetRow(lane, lanes.owners, shift, hasDevice ? "GPU idle" : "idle", IDLE));
    }
    const below = curvesOf(rank, shift, top);
    curves.push(...below);
    top += heightOf(below) + (lane ? PATH_HEIGHT : 0);
    blocks.push({ rank: rank.rank, node: rank.node, top: start, height: top - start, folded: false });
    top += BLOCK_GAP;
  }
  for (const lane of lanes?.ranks ?? []) {
    if (slice.ranks.some(({ rank }) => rank === lane.rank)) continue;
    const start = top;
    add(budgetRow(lane, lanes?.owners ?? [], shift, "", null));
    blocks.push({ rank: lane.rank, node: lane.node, top: start, height: FOLDED_HEIGHT, folded: true });
    top += FOLDED_GAP;
  }
  return {
    slice,
    shift,
    from: shift,
    to,
    rows,
    blocks,
    curves,
    joined: joinedOf(slice, rows, shift),
    labels: slice.labels.map(({ title, rank, start_us, end_us, what }) => ({
      title,
      rank,
      what,
      from: start_us + shift,
      to: end_us + shift,
    })),
    height: Math.max(0, top - (blocks[blocks.length - 1]?.folded ? FOLDED_GAP : BLOCK_GAP)),
    hidden: slice.ranks.reduce((sum, { left_out }) => sum + left_out, 0),
  };
}

/**
 * A rank's time by owner as a row; of some owners only, or of all.
 * @param {RankLane} lane
 * @param {string[]} owners
 * @param {number} shift us
 * @param {string} title "" for a folded rank
 * @param {Set<string> | null} only
 * @returns {Row}
 */
function budgetRow({ rank, owner, start_us, length_us }, owners, shift, title, only) {
  const here = owner.flatMap((one, i) => (!only || only.has(owners[one]) ? [i] : []));
  const owned = Int32Array.from(here, (i) => owner[i]);
  const none = new Int32Array(here.length).fill(-1);
  return {
    rank,
    title,
    lane: title || "step by owner",
    paint: "budget",
    folded: !title,
    top: 0,
    height: title ? HOST_HEIGHT + 1 : FOLDED_HEIGHT,
    starts: Float64Array.from(here, (i) => start_us[i] + shift),
    ends: Float64Array.from(here, (i) => start_us[i] + length_us[i] + shift),
    names: owners.map(ownerName),
    name: owned,
    owners,
    owner: owned,
    collective: none,
    modules: [],
    module: none,
    launch: none,
  };
}

/**
 * Whether anything of a lane lies in the slice's window.
 * @param {Lane} lane
 * @param {number} length us
 */
const shows = ({ start_us, length_us }, length) => start_us.some((start, i) => start < length && start + length_us[i] > 0);

/**
 * A row for each depth of a lane.
 * @param {Lane} lane
 * @param {Slice["ranks"][number]} rank
 * @param {string[]} owners
 * @param {number} shift us
 * @param {number} depths
 * @returns {Row[]}
 */
function split(lane, rank, owners, shift, depths) {
  const onDevice = lane.role === "stream";
  /** Events of each depth. */
  const counts = [0];
  for (const depth of lane.depth) counts[depth] = (counts[depth] ?? 0) + 1;
  const title = { main: "CPU", autograd: "autograd", thread: lane.title, stream: streamTitle(lane.title) }[lane.role];
  /** @type {Row[]} */
  const rows = Array.from(counts.slice(0, depths), (count = 0, depth) => ({
    rank: rank.rank,
    title: depth ? "" : title,
    lane: lane.title,
    paint: onDevice ? "device" : "host",
    folded: false,
    top: 0,
    height: onDevice && !depth ? DEVICE_HEIGHT : HOST_HEIGHT,
    starts: new Float64Array(count),
    ends: new Float64Array(count),
    names: rank.names,
    name: new Int32Array(count),
    owners,
    owner: new Int32Array(count),
    collective: new Int32Array(count),
    modules: rank.modules,
    module: new Int32Array(count),
    launch: new Int32Array(count),
  }));
  const filled = new Int32Array(rows.length);
  for (let i = 0; i < lane.depth.length; i++) {
    const row = rows[lane.depth[i]];
    if (!row) continue;
    const at = filled[lane.depth[i]]++;
    row.starts[at] = lane.start_us[i] + shift;
    row.ends[at] = lane.start_us[i] + lane.length_us[i] + shift;
    row.name[at] = lane.name[i];
    row.owner[at] = lane.owner[i];
    row.collective[at] = lane.collective[i];
    row.module[at] = lane.module[i];
    row.launch[at] = lane.launch?.[i] ?? -1;
  }
  return rows;
}

/** @param {string} title as "GPU 0 stream 7: compute" */
const streamTitle = (title) => (title.split(": ")[1] ?? title).replace("communication", "comm.");

/**
 * The collectives of which some rank's part shows, with the arrival of each rank.
 * @param {Slice} slice
 * @param {Row[]} rows
 * @param {number} shift us
 */
function joinedOf(slice, rows, shift) {
  /** @type {Map<string, Joined>} */
  const found = new Map(
    Object.entries(slice.collectives).map(([key, { kind, group, bytes, size, last_rank, last_us, transfer_us, bus_factor }]) => [
      key,
      { key, kind, group, bytes, size, bus_factor, transfer: transfer_us, last_rank, last: last_us + shift, arrivals: [] },
    ]),
  );
  for (const { rank, collective, starts, top, height } of rows) {
    for (let i = 0; i < collective.length; i++)
      if (collective[i] >= 0) found.get(String(collective[i]))?.arrivals.push({ rank, at: starts[i], y: top + height / 2 });
  }
  return found;
}

/**
 * From when on an event waits no longer; its start where it does not wait.
 * @param {Row} row
 * @param {number} i
 * @param {Map<string, Joined>} joined
 */
export function waitsUntil(row, i, joined) {
  const one = row.collective[i] < 0 ? undefined : joined.get(String(row.collective[i]));
  return one ? Math.min(Math.max(one.last, row.starts[i]), row.ends[i]) : row.starts[i];
}

/**
 * An event of an earlier slice in the rows of another; null where it is not there.
 * @param {Row} before
 * @param {number} index
 * @param {Row[]} rows
 */
export function foundAgain(before, index, rows) {
  const [start, name] = [before.starts[index], before.names[before.name[index]]];
  for (const [row, { rank, lane, starts, names, name: named }] of rows.entries()) {
    if (rank !== before.rank || lane !== before.lane) continue;
    const at = firstAbove(starts, start - SAME_US);
    if (at < starts.length && starts[at] < start + SAME_US && names[named[at]] === name) return { row, index: at };
  }
  return null;
}

/**
 * A name without what says nothing to its reader.
 * @param {string} name
 */
export const plainName = (name) => name.replace(/\(anonymous namespace\)::|\bat::native::/g, "").replace(/^void /, "");

/** A Python function as the profiler names it: "train.py(41): step". */
const FRAME = /^(.+)\((\d+)\): (.+)$/;

/**
 * A kernel's name without its types, a Python function as "step (train.py:41)", or any other name as it is.
 * @param {string} name
 */
export function shortName(name) {
  const frame = FRAME.exec(name);
  if (frame) return `${frame[3]} (${frame[1].split(/[\\/]/).pop()}:${frame[2]})`;
  const plain = plainName(name);
  const end = plain.search(/[<(]/);
  if (end <= 0) return plain;
  return plain.slice(0, end).split("::").pop() || plain;
}

/**
 * What is written on an event's box: of a collective its kind, else its short name.
 * @param {Row} row
 * @param {number} i
 * @param {Map<string, Joined>} joined
 */
export const written = (row, i, joined) => joined.get(String(row.collective[i]))?.kind || shortName(row.names[row.name[i]]);
