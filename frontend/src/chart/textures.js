// Patterns say the class of an owner, beside its colour: solid where the GPU works, fine textures where it idles, and pale with
// diagonals where it waits for another rank, so that the cause stands out. The style sheet has the same for what is no
// canvas (`.textured`).

/** @typedef {(name: string) => string} Colour */

/** A tile's side; lines repeat after half of it, dots after all, CSS pixels. */
const TILE = 8;
/** How strong the lines of a texture are. */
const FAINT = 0.34;

/** @type {Record<string, (pen: CanvasRenderingContext2D, colour: Colour) => void>} what is drawn over an owner's colour */
const OVER = {
  wait(pen, colour) {
    pen.fillStyle = colour("hatch");
    pen.fillRect(0, 0, TILE, TILE);
    lines(pen, colour("wait"), 1.3, 1, 8);
  },
  input(pen, colour) {
    pen.globalAlpha = FAINT;
    pen.fillStyle = colour("card");
    for (const at of [0, 4]) pen.fillRect(at, 0, 1, TILE);
  },
  sync(pen, colour) {
    pen.globalAlpha = FAINT;
    pen.fillStyle = colour("card");
    for (const at of [0, 4]) pen.fillRect(0, at, TILE, 1);
  },
  alloc(pen, colour) {
    OVER.input(pen, colour);
    OVER.sync(pen, colour);
  },
  dispatch(pen, colour) {
    pen.globalAlpha = 0.6;
    pen.fillStyle = colour("on-light");
    for (const x of [1, 5]) for (const y of [1, 5]) pen.fillRect(x, y, 1.6, 1.6);
  },
  host(pen, colour) {
    pen.globalAlpha = FAINT;
    lines(pen, colour("card"), 1.2, -1, 4);
  },
};

/** What was made, by owner and its colours: a theme has one of each. @type {Map<string, CanvasPattern>} */
const made = new Map();

/**
 * What an owner's time is filled with.
 * @param {CanvasRenderingContext2D} context
 * @param {string} owner
 * @param {Colour} colour
 * @returns {string | CanvasPattern}
 */
export function fillOf(context, owner, colour) {
  const over = OVER[owner];
  if (!over) return colour(owner);
  const key = [owner, ...[owner, "card", "hatch", "on-light"].map(colour)].join(" ");
  const known = made.get(key);
  if (known) return known;
  const tile = document.createElement("canvas");
  tile.width = tile.height = TILE;
  const pen = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
  pen.fillStyle = colour(owner);
  pen.fillRect(0, 0, TILE, TILE);
  over(pen, colour);
  const pattern = context.createPattern(tile, "repeat");
  if (pattern) made.set(key, pattern);
  return pattern ?? colour(owner);
}

/**
 * Parallels at 45 degrees that go on in the neighbouring tiles, so that their corners meet.
 * @param {CanvasRenderingContext2D} pen
 * @param {string} colour
 * @param {number} thick
 * @param {1 | -1} way 1 upwards
 * @param {number} apart along the side
 */
function lines(pen, colour, thick, way, apart) {
  pen.strokeStyle = colour;
  pen.lineWidth = thick;
  pen.beginPath();
  for (let at = -TILE; at <= TILE; at += apart) {
    pen.moveTo(at - 2, way > 0 ? TILE + 2 : -2);
    pen.lineTo(at + TILE + 2, way > 0 ? -2 : TILE + 2);
  }
  pen.stroke();
}
