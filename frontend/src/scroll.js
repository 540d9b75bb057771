// Where somebody reads stays where it is while a page is made anew and its parts come in one after the other.

/**
 * Scroll an element to where it was, again whenever it grows, until it is there or somebody scrolls.
 * @param {HTMLElement} element
 * @param {number} top CSS pixels
 */
export function holdScroll(element, top) {
  const by = ["wheel", "pointerdown", "keydown", "touchmove"];
  const stop = () => {
    grows.disconnect();
    for (const event of by) element.removeEventListener(event, stop);
  };
  const move = () => {
    element.scrollTop = top;
    if (Math.abs(element.scrollTop - top) < 1) stop();
  };
  const grows = new ResizeObserver(move);
  for (const event of by) element.addEventListener(event, stop, { passive: true });
  for (const child of element.children) grows.observe(child);
  move();
}
