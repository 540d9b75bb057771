// Marks the elements whose contrast axe is to compute, the costliest of its rules: the first few of those that look
// alike, cells of a table for example. A few, since axe does not judge what is partly covered. What is placed over other
// elements is always marked, since its background is theirs.
() => {
  const TELLS = [
    "color", "backgroundColor", "backgroundImage", "opacity", "fontSize", "fontWeight", "textShadow", "filter",
    "mixBlendMode", "display", "visibility",
  ];
  const MOST_ALIKE = 3;
  const numbers = new Map();
  const looks = new Map();
  const counts = new Map();

  const numberOf = (key) => numbers.get(key) ?? (numbers.set(key, numbers.size), numbers.size - 1);

  /** The element's look and that of all that it is in. */
  const lookOf = (element) => {
    if (!element) return { number: "", isPlaced: false };
    if (!looks.has(element)) {
      const around = lookOf(element.parentElement);
      const style = getComputedStyle(element);
      const isDisabled = element.matches(":disabled, [aria-disabled]");
      const own = [element.tagName, isDisabled, ...TELLS.map((name) => style[name])];
      looks.set(element, {
        number: numberOf(`${around.number} ${own}`),
        isPlaced: around.isPlaced || style.position !== "static",
      });
    }
    return looks.get(element);
  };

  /** How much is written in the element itself; of a single letter axe does not judge. */
  const lengthOf = (element) => {
    const texts = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
    return Math.min(texts.map((text) => text.data).join("").trim().length, 2);
  };

  for (const element of document.querySelectorAll("*")) {
    const { number, isPlaced } = lookOf(element);
    const key = `${number} ${lengthOf(element)}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
    element.toggleAttribute("data-distinct", isPlaced || counts.get(key) <= MOST_ALIKE);
  }
  axe.configure({ rules: [{ id: "color-contrast", selector: "[data-distinct]" }] });
}
