// Marks the elements whose contrast axe is to compute, the costliest of its rules: the first few of those that look
// alike, cells of a table for example. A few, since axe does not judge what is partly covered. What is placed over other
// elements is always marked, since its background is theirs; a heading that sticks is not, where nothing has scrolled.
//
// Contrast comes of an element's own text and of what is painted behind it: an element around it that paints nothing
// makes no other look.
() => {
  const OF_TEXT = ["color", "fontSize", "fontWeight", "textShadow", "visibility"];
  const PAINTED = {
    backgroundColor: "rgba(0, 0, 0, 0)",
    backgroundImage: "none",
    opacity: "1",
    filter: "none",
    mixBlendMode: "normal",
  };
  const MOST_ALIKE = 3;
  const NOT_SEEN = { contentVisibilityAuto: true, opacityProperty: true, visibilityProperty: true };
  const around = new Map();
  const counts = new Map();

  /** What is behind the text of an element: what it and the elements around it paint, and whether one is placed. */
  const behind = (element) => {
    if (!element) return { painted: "", isPlaced: false, isDisabled: false };
    if (!around.has(element)) {
      const outer = behind(element.parentElement);
      const style = getComputedStyle(element);
      const own = Object.entries(PAINTED).filter(([name, nothing]) => style[name] !== nothing);
      around.set(element, {
        painted: outer.painted + own.map(([name]) => `${name} ${style[name]};`).join(""),
        isPlaced: outer.isPlaced || !["static", "sticky"].includes(style.position),
        isDisabled: outer.isDisabled || element.matches(":disabled, [aria-disabled]"),
      });
    }
    return around.get(element);
  };

  /** How much is written in the element itself; of a single letter axe does not judge. */
  const lengthOf = (element) => {
    const texts = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
    return Math.min(texts.map((text) => text.data).join("").trim().length, 2);
  };

  for (const element of document.querySelectorAll("*")) {
    const { painted, isPlaced, isDisabled } = behind(element);
    const style = getComputedStyle(element);
    const text = [element.tagName, isDisabled, element.checkVisibility(NOT_SEEN), lengthOf(element)];
    const key = [painted, ...text, ...OF_TEXT.map((name) => style[name])].join("|");
    if (!isPlaced) counts.set(key, (counts.get(key) ?? 0) + 1);
    element.toggleAttribute("data-distinct", isPlaced || counts.get(key) <= MOST_ALIKE);
  }
  axe.configure({ rules: [{ id: "color-contrast", selector: "[data-distinct]" }] });
}
