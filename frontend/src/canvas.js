// Pictures that redraw themselves when their size or the theme changes. Coordinates are CSS pixels.

/** @typedef {(context: CanvasRenderingContext2D, width: number, height: number, colour: (name: string) => string) => void} Draw */

/**
 * What the arrow keys mean in a picture of cells: by how many rows down and columns to the right they go.
 * @type {Record<string, [number, number]>}
 */
export const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

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
  draw(context, width, height, coloursOf(getComputedStyle(canvas)));
}

/**
 * The theme's colours by name; each is read from the style once.
 * @param {CSSStyleDeclaration} style
 */
function coloursOf(style) {
  /** @type {Map<string, string>} */
  const known = new Map();
  return (/** @type {string} */ name) => {
    let colour = known.get(name);
    if (colour === undefined) known.set(name, (colour = style.getPropertyValue(`--${name}`).trim()));
    return colour;
  };
}
