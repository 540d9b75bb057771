// On a phone: TensorBoard's page names no viewport, so phones draw it 980 pixels wide and shrink it. The tab adds one where
// it may: on a small touch screen, in a page of its own origin that has none.

/** Screens that are narrower are phones', CSS pixels. */
const NARROW = 700;

export function setViewport() {
  if (parent === window || screen.width >= NARROW || !matchMedia("(pointer: coarse)").matches) return;
  try {
    const { head } = parent.document;
    if (head.querySelector('meta[name="viewport"]')) return;
    const meta = parent.document.createElement("meta");
    meta.name = "viewport";
    meta.content = "width=device-width, initial-scale=1";
    head.append(meta);
  } catch {
    // Framed by another origin, whose page this is.
  }
}
