// A job's hours on one axis of time: lost time stacked by kind, step time, events and captures, and a heat map of ranks.
//
// x is CSS pixels: names stand left of LEFT, and the span of time that shows fills the rest. Bands lie under one another:
//   lost time | step time | marks of events and captures | a row for each rank or group of ranks | the axis of time

import { paint, picture } from "../canvas.js";
import { NAMES, nameRows } from "../chart/marks.js";
import { h } from "../dom.js";
import { ms, percent } from "../format.js";
import { pixels, rgb } from "../heat.js";
import { fitting } from "../timeline/frame.js";
import { ticks, within, zoomed } from "../timeline/scale.js";
import { clockTicks, instant } from "./clock.js";
import { binAt, evenStretches } from "./model.js";

/** @typedef {import("./model.js").Hours} Hours */
/** @typedef {import("./model.js").Range} Range */
/** @typedef {import("../timeline/scale.js").Span} Span */

const LEFT = NAMES + 6;
/** Heights of the bands, and the room between them, CSS pixels. */
const [LOST, STEP, MARKS, AXIS, ROOM] = [110, 110, 34, 20, 22];
/** Rows of the heat map are as high as these together, and one pixel at least. */
const [TALLEST, FILLS] = [14, 260];
/** Step times are drawn on a scale of logarithms where the longest is so many times the median. */
const WIDE = 4;
/** The darkest shade is at least this share above the median rank. */
const DARKEST = 0.05;
/** A click on a capture may miss it by so much. */
const REACH = 8;
/** A press that moves less is a click. */
const STILL = 4;

/** Colours of kinds of lost time, by the names of owners; marked phases take the others in turn. */
const COLOURS = { stragglers: "wait", "rare steps": "host", "unmarked pauses": "input", restarts: "sync" };
const OTHERS = ["transfer", "alloc", "dispatch", "copy"];

/** @param {Hours} hours @returns {Map<string, string>} */
export function coloursOf({ lost_s }) {
  const phases = Object.keys(lost_s).filter((name) => !(name in COLOURS));
  return new Map(Object.keys(lost_s).map((name) => [name, COLOURS[/** @type {keyof typeof COLOURS} */ (name)] ?? OTHERS[phases.indexOf(name) % OTHERS.length]]));
}

/**
 * @param {object} given
 * @param {Hours} given.hours
 * @param {() => Float32Array[]} given.rows of the heat map
 * @param {() => Range | null} given.range that is chosen
 * @param {() => number[]} given.chosen steps of captures
 * @param {(range: Range | null) => void} given.choose
 * @param {(step: number) => void} given.toggle a capture
 */
export function hoursPicture({ hours, rows, range, chosen, choose, toggle }) {
  const { edges_s: edges, step_ms, heat } = hours;
  const whole = { from: edges[0], to: edges[edges.length - 1] };
  const count = edges.length - 1;
  let span = whole;
  let cursor = count - 1;
  const rowCount = heat ? heat.ranks.length : 0;
  const pitch = Math.max(1, Math.min(TALLEST, Math.floor(FILLS / Math.max(rowCount, 1))));
  const top = { lost: ROOM, step: 2 * ROOM + LOST, marks: 2 * ROOM + LOST + STEP + 8, heat: 3 * ROOM + LOST + STEP + MARKS };
  const bottom = heat ? top.heat + pitch * rowCount : top.marks + MARKS;
  const hint = "Point at the picture, or use the arrow keys, for exact values; drag to choose a range; the wheel zooms.";
  const readout = h("p", { class: "readout", "aria-live": "polite" }, hint);
  const canvas = picture("hours", `Hours of ${hours.ranks ? `${hours.ranks} ranks` : "a job"}: lost time, step time${heat ? ", busy time by rank" : ""}`, draw);
  canvas.style.height = `${bottom + AXIS}px`;
  canvas.tabIndex = 0;
  const colours = coloursOf(hours);
  /** What made some ranks slower, and not all. */
  const slowed = hours.events.filter(({ level, ranks, cost_s }) => level !== "job" && cost_s > 0 && ranks.length < hours.ranks && rowsOf(ranks).length > 0);
  const marker = h("div", { class: "heat-cursor", hidden: true });
  const x = (/** @type {number} */ at) => LEFT + ((at - span.from) / (span.to - span.from)) * (canvas.clientWidth - LEFT);
  const timeAt = (/** @type {number} */ left) => span.from + ((left - LEFT) / (canvas.clientWidth - LEFT)) * (span.to - span.from);
  const clampedTime = (/** @type {number} */ left) => Math.max(whole.from, Math.min(whole.to, timeAt(left)));

  let pressed = -1;
  canvas.addEventListener("pointerdown", ({ offsetX, pointerId }) => {
    pressed = offsetX;
    canvas.setPointerCapture(pointerId);
  });
  canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
    if (pressed >= 0 && Math.abs(offsetX - pressed) >= STILL) {
      const [a, b] = [clampedTime(pressed), clampedTime(offsetX)].sort((one, other) => one - other);
      choose({ from: binAt(edges, a), to: binAt(edges, b) + 1 });
    }
    show(binAt(edges, timeAt(offsetX)), Math.floor((offsetY - top.heat) / pitch));
  });
  canvas.addEventListener("pointerup", ({ offsetX, offsetY }) => {
    const still = pressed >= 0 && Math.abs(offsetX - pressed) < STILL;
    pressed = -1;
    if (!still) return;
    const near = hours.captures
      .filter(({ at_s }) => at_s !== null && Math.abs(x(at_s) - offsetX) <= REACH)
      .sort((a, b) => Math.abs(x(Number(a.at_s)) - offsetX) - Math.abs(x(Number(b.at_s)) - offsetX));
    if (near.length && offsetY >= top.marks - 4 && offsetY <= top.marks + MARKS) toggle(near[0].step);
    else choose(null);
  });
  canvas.addEventListener("pointerleave", () => pressed < 0 && leave());
  canvas.addEventListener("blur", leave);
  canvas.addEventListener("dblclick", () => zoom(whole));
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (event.ctrlKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) return;
      // A picture that shows all lets the page scroll on.
      if (event.deltaY > 0 && span === whole) return;
      event.preventDefault();
      zoom(zoomed(span, timeAt(event.offsetX), event.deltaY > 0 ? 1.25 : 0.8));
    },
    { passive: false },
  );
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && event.shiftKey) {
      const now = range() ?? { from: cursor, to: cursor + 1 };
      choose({ from: now.from, to: Math.max(now.from + 1, Math.min(count, now.to + step)) });
    } else if (step) show(Math.max(0, Math.min(count - 1, cursor + step)), -1);
    else if (event.key === "+" || event.key === "-") zoom(zoomed(span, edges[cursor], event.key === "-" ? 1.25 : 0.8));
    else if (event.key === "Escape") {
      choose(null);
      zoom(whole);
    } else if (event.key === "Enter") {
      const near = hours.captures.find(({ at_s }) => at_s !== null && binAt(edges, at_s) === cursor);
      if (near) toggle(near.step);
    } else return;
    event.preventDefault();
  });

  /** @param {Span} to */
  function zoom(to) {
    const shows = within({ from: to.from, to: Math.max(to.to, to.from + (whole.to - whole.from) / (10 * count)) }, whole);
    span = shows.to - shows.from >= whole.to - whole.from ? whole : shows;
    redraw();
  }

  function leave() {
    marker.hidden = true;
    readout.textContent = hint;
  }

  /** @param {number} bin @param {number} row */
  function show(bin, row) {
    cursor = bin;
    const [left, right] = [Math.max(LEFT, x(edges[bin])), Math.min(canvas.clientWidth, x(edges[bin + 1]))];
    marker.hidden = right <= LEFT || left >= canvas.clientWidth;
    marker.style.cssText = `left: ${left}px; width: ${Math.max(1, right - left)}px; top: ${top.lost}px; height: ${bottom - top.lost}px`;
    readout.textContent = said(hours, rows(), bin, row);
  }

  const redraw = () => paint(canvas);

  /** @type {import("../canvas.js").Draw} */
  function draw(context, width, _height, colour) {
    context.font = `11px ${getComputedStyle(canvas).fontFamily}`;
    context.textBaseline = "middle";
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT, bottom + AXIS);
    context.clip();
    const columns = shownColumns();
    timeAxis(context, colour, width);
    lostTime(context, colour, columns);
    stepTime(context, colour, columns);
    if (heat) heatRows(context, colour, columns);
    marks(context, colour);
    chosenRange(context, colour);
    context.restore();
    axes(context, colour, width);
  }

  /** The heat map, a pixel a cell, as it was last shaded. @type {{values: Float32Array[], colours: string, image: HTMLCanvasElement} | null} */
  let shaded = null;

  /** @param {Float32Array[]} values @param {string} pale @param {string} full */
  function shadesOf(values, pale, full) {
    if (shaded?.values === values && shaded.colours === `${pale} ${full}`) return shaded.image;
    const image = document.createElement("canvas");
    const most = darkest(values);
    const data = pixels(values, (share) => Math.min(1, share / most), rgb(pale), rgb(full));
    [image.width, image.height] = [data.width, data.height];
    image.getContext("2d")?.putImageData(data, 0, 0);
    shaded = { values, colours: `${pale} ${full}`, image };
    return image;
  }

  /** Bins of which something shows. */
  function shownColumns() {
    const [first, last] = [binAt(edges, span.from), binAt(edges, span.to)];
    return Array.from({ length: last - first + 1 }, (_, i) => first + i);
  }

  /** @param {CanvasRenderingContext2D} context @param {(name: string) => string} colour @param {number} width */
  function timeAxis(context, colour, width) {
    context.textAlign = "center";
    for (const { at, text } of clockTicks(span, width - LEFT)) {
      context.fillStyle = colour("line");
      context.fillRect(Math.round(x(at)), top.lost, 1, bottom - top.lost);
      context.fillStyle = colour("soft");
      if (x(at) > LEFT + 18 && x(at) < width - 18) context.fillText(text, x(at), bottom + AXIS / 2);
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {(name: string) => string} colour @param {number[]} columns */
  function lostTime(context, colour, columns) {
    const most = mostLost();
    for (const bin of columns) {
      let y = top.lost + LOST;
      for (const [name, seconds] of Object.entries(hours.lost_s)) {
        const tall = (seconds[bin] / Math.max(edges[bin + 1] - edges[bin], 1e-9) / most) * LOST;
        context.fillStyle = colour(colours.get(name) ?? "host");
        context.fillRect(x(edges[bin]), y - tall, Math.max(1, x(edges[bin + 1]) - x(edges[bin])) + 0.3, tall);
        y -= tall;
      }
    }
  }

  /** The largest share of a bin that was lost, and a tenth at least. */
  function mostLost() {
    const shares = edges.slice(0, -1).map((edge, bin) => Object.values(hours.lost_s).reduce((sum, seconds) => sum + seconds[bin], 0) / Math.max(edges[bin + 1] - edge, 1e-9));
    return Math.min(1, Math.max(0.1, ...shares));
  }

  /** Where a step time lies, and the times to name. */
  function stepScale() {
    const known = (/** @type {(number | null)[]} */ values) => /** @type {number[]} */ (values.filter((value) => value !== null && value > 0));
    const [lows, highs] = [known(step_ms.low), known(step_ms.high)];
    const [least, most] = [Math.min(...lows), Math.max(...highs)];
    const isWide = most > WIDE * hours.median_step_ms;
    const from = isWide ? Math.log(least * 0.95) : Math.max(0, least - 0.1 * (most - least || most));
    const to = isWide ? Math.log(most * 1.05) : most + 0.05 * (most - least || most);
    const y = (/** @type {number} */ value) => top.step + STEP - (((isWide ? Math.log(value) : value) - from) / (to - from)) * STEP;
    const named = isWide ? [1, 2, 5].flatMap((digit) => Array.from({ length: 12 }, (_, i) => digit * 10 ** (i - 3))).filter((value) => value >= Math.exp(from) && value <= Math.exp(to)) : ticks({ from, to }, STEP, 30);
    return { y, named };
  }

  /** @param {CanvasRenderingContext2D} context @param {(name: string) => string} colour @param {number[]} columns */
  function stepTime(context, colour, columns) {
    const { y } = stepScale();
    const middle = (/** @type {number} */ bin) => (x(edges[bin]) + x(edges[bin + 1])) / 2;
    context.fillStyle = colour("soft");
    for (const bin of columns) {
      const high = step_ms.high[bin];
      if (high !== null && high > 0) context.fillRect(middle(bin) - 1, y(high) - 1, 2, 2);
    }
    for (const [name, width, dash] of /** @type {["low" | "median" | "p99", number, number[]][]} */ ([["low", 1, [2, 2]], ["p99", 1, []], ["median", 2, []]])) {
      context.strokeStyle = colour(name === "low" ? "soft" : "accent");
      context.lineWidth = width;
      context.setLineDash(dash);
      context.beginPath();
      let goesOn = false;
      for (const bin of columns) {
        const value = step_ms[name][bin];
        if (value === null || value <= 0) goesOn = false;
        else {
          context[goesOn ? "lineTo" : "moveTo"](middle(bin), y(value));
          goesOn = true;
        }
      }
      context.stroke();
    }
    context.setLineDash([]);
  }

  /** @param {CanvasRenderingContext2D} context @param {(name: string) => string} colour @param {number[]} columns */
  function heatRows(context, colour, columns) {
    const values = rows();
    const small = shadesOf(values, colour("card"), colour("host"));
    context.imageSmoothingEnabled = false;
    // A picture for each column took longer than a frame.
    for (const [first, end] of evenStretches(edges.map(x), columns[0], columns[columns.length - 1] + 1))
      context.drawImage(small, first, 0, end - first, small.height, x(edges[first]), top.heat, Math.max(1, x(edges[end]) - x(edges[first])) + 0.3, pitch * values.length);
    context.strokeStyle = colour("critical");
    context.lineWidth = 1;
    for (const { ranks, begin_s, end_s } of slowed) {
      const touched = rowsOf(ranks);
      const [first, last] = [touched[0], touched[touched.length - 1]];
      context.strokeRect(x(begin_s), top.heat + first * pitch - 0.5, Math.max(3, x(end_s) - x(begin_s)), (last - first + 1) * pitch + 1);
    }
  }

  /** Rows of the heat map that have some of these ranks, ascending. @param {number[]} ranks */
  function rowsOf(ranks) {
    if (!heat) return [];
    const all = new Set(ranks);
    return heat.ranks.flatMap((first, row) => (Array.from({ length: heat.of }, (_, i) => first + i).some((rank) => all.has(rank)) ? [row] : []));
  }

  /** @param {CanvasRenderingContext2D} context @param {(name: string) => string} colour */
  function marks(context, colour) {
    for (const { begin_s, end_s, cost_s } of hours.events.slice(0, 12)) {
      context.fillStyle = colour(cost_s > 0 ? "critical" : "healthy");
      context.fillRect(x(begin_s), top.marks, Math.max(2, x(end_s) - x(begin_s)), 3);
      context.fillRect(x(begin_s), top.marks - 2, 2, 7);
    }
    const steps = chosen();
    for (const { step, at_s } of hours.captures) {
      if (at_s === null) continue;
      const isChosen = steps.includes(step);
      const [middle, y] = [x(at_s), top.marks + 14];
      context.fillStyle = context.strokeStyle = colour(isChosen ? "accent" : "soft");
      context.beginPath();
      context.moveTo(middle, y);
      context.lineTo(middle - 5, y + 10);
      context.lineTo(middle + 5, y + 10);
      context.closePath();
      if (isChosen) context.fill();
      else context.stroke();
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {(name: string) => string} colour */
  function chosenRange(context, colour) {
    const now = range();
    if (!now) return;
    const [left, right] = [x(edges[now.from]), x(edges[now.to])];
    context.globalAlpha = 0.12;
    context.fillStyle = colour("accent");
    context.fillRect(left, top.lost, right - left, bottom - top.lost);
    context.globalAlpha = 1;
    context.fillStyle = colour("accent");
    context.fillRect(left - 0.5, top.lost, 1, bottom - top.lost);
    context.fillRect(right - 0.5, top.lost, 1, bottom - top.lost);
  }

  /** @param {CanvasRenderingContext2D} context @param {(name: string) => string} colour @param {number} width */
  function axes(context, colour, width) {
    context.textAlign = "left";
    context.fillStyle = colour("ink");
    const heads = [
      [`Lost time, share of time`, top.lost],
      ["Step time: median (thick), p99, minimum (dashed), maximum (dots)", top.step],
    ];
    if (heat) heads.push([heat.of > 1 ? `Busy time above the median rank; a row is the slowest of ${heat.of} ranks` : "Busy time above the median rank", top.heat]);
    for (const [text, y] of heads) context.fillText(fitting(context, String(text), width - LEFT), LEFT, Number(y) - ROOM / 2);
    context.textAlign = "right";
    context.fillStyle = colour("soft");
    const most = mostLost();
    for (const share of [0, most / 2, most]) context.fillText(percent(share), LEFT - 6, top.lost + LOST - (share / most) * LOST);
    const { y, named } = stepScale();
    for (const value of named) context.fillText(ms(value).replace(".0", ""), LEFT - 6, y(value));
    context.fillText("events", LEFT - 6, top.marks + 2);
    if (hours.captures.some(({ at_s }) => at_s !== null)) context.fillText("captures", LEFT - 6, top.marks + 20);
    context.fillStyle = colour("line");
    context.fillRect(LEFT, top.lost + LOST, width - LEFT, 1);
    if (!heat) return;
    const slow = new Set(slowed.flatMap(({ ranks }) => rowsOf(ranks)));
    nameRows(context, colour, { names: heat.ranks.map((rank) => `rank ${rank}`), affected: (row) => slow.has(row), pitch, top: top.heat, right: LEFT - 6 });
  }

  return { frame: h("div", { class: "heat-frame" }, canvas, marker), readout, redraw, show: (/** @type {Range | null} */ to) => zoom(to ? { from: edges[to.from], to: edges[to.to] } : whole) };
}

/** Largest shares of heat maps, which do not change. @type {WeakMap<Float32Array[], number>} */
const known = new WeakMap();

/**
 * The share above the median rank that has the darkest shade: of one cell in a thousand more, 5 % at least.
 * @param {Float32Array[]} rows
 */
export function darkest(rows) {
  let share = known.get(rows);
  if (share === undefined) known.set(rows, (share = darkestOf(rows)));
  return share;
}

/** @param {Float32Array[]} rows */
function darkestOf(rows) {
  const known = new Float32Array(rows.reduce((sum, row) => sum + row.length, 0));
  let count = 0;
  for (const row of rows) for (const share of row) if (share === share) known[count++] = share;
  const sorted = known.subarray(0, count).sort();
  return Math.max(DARKEST, sorted[Math.floor(0.999 * (count - 1))] ?? 0);
}

/**
 * A bin in words, and a row of the heat map where one is pointed at.
 * @param {Hours} hours
 * @param {Float32Array[]} rows
 * @param {number} bin
 * @param {number} row
 */
function said({ edges_s, first_step, bin_steps, step_ms, lost_s, heat }, rows, bin, row) {
  const from = first_step + bin * bin_steps;
  const median = step_ms.median[bin];
  const parts = [`${instant(edges_s[bin])}, steps ${from.toLocaleString("en")} to ${(from + bin_steps - 1).toLocaleString("en")}`];
  parts.push(median === null ? "not timed" : `median ${ms(median)}, p99 ${ms(Number(step_ms.p99[bin]))}, maximum ${ms(Number(step_ms.high[bin]))}`);
  const long = Math.max(edges_s[bin + 1] - edges_s[bin], 1e-9);
  for (const [name, seconds] of Object.entries(lost_s)) if (seconds[bin] / long >= 0.001) parts.push(`${name} ${percent(seconds[bin] / long)}`);
  if (heat && row >= 0 && row < rows.length) {
    const share = rows[row][bin];
    const last = heat.ranks[row] + heat.of - 1;
    const who = heat.of > 1 ? `slowest of ranks ${heat.ranks[row]}-${last}` : `rank ${heat.ranks[row]}`;
    parts.push(`${who} on ${heat.nodes[row]}: ${share === share ? `${percent(share)} above the median rank` : "not recorded"}`);
  }
  return parts.join("; ");
}
