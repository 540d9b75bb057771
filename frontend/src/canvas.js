// Pictures that redraw themselves when their size or the theme changes. Coordinates are CSS pixels.

/** @typedef {(context: CanvasRenderingContext2D, width: number, height: number, colour: (name: string) => string) => void} Draw */

/** @type {WeakMap<HTMLCanvasElement, Draw>} */
const drawings = new WeakMap();

const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) paint(/** @type {HTMLCanvasElement} */ (target));
});

/**
 * A canvas; its size comes from the style sheet.
 * @param {string} className
 * @param {string} label what it shows, for those who cannot see it
 * @param {Draw} draw
 */
export function picture(className, label, draw) {
  const canvas = document.createElement("canvas");
  canvas.className = className;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  drawings.set(canvas, draw);
  resized.observe(canvas);
  return canvas;
}

/** Redraw every picture on the page. */
export function repaint() {
  document.querySelectorAll("canvas").forEach(paint);
}

/** @param {HTMLCanvasElement} canvas */
export function paint(canvas) {
  const draw = drawings.get(canvas);
  const { clientWidth: width, clientHeight: height } = canvas;
  const context = canvas.getContext("2d");
  if (!draw || !context || !width || !height) return;
  const scale = devicePixelRatio;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  context.scale(scale, scale);
  const style = getComputedStyle(canvas);
  draw(context, width, height, (name) => style.getPropertyValue(`--${name}`).trim());
}

/**
 * The pattern of waiting: hatched, since it is nobody's work.
 * @param {CanvasRenderingContext2D} context
 * @param {(name: string) => string} colour
 */
export function hatch(context, colour) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
  pen.fillStyle = colour("wait");
  pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = colour("hatch");
  pen.lineWidth = 1.6;
  pen.beginPath();
  for (const offset of [-8, 0, 8]) {
    // Three parallels, so that the corners of neighbouring tiles meet.
    pen.moveTo(offset - 2, 10);
    pen.lineTo(offset + 10, -2);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat") ?? colour("wait");
}
