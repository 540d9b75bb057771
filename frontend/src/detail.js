// A view whose numbers are asked for when it is opened.

import { fetchDetail } from "./api.js";
import { h } from "./dom.js";

/**
 * @param {HTMLElement} element
 * @param {string} run
 * @param {"operators" | "communication" | "memory" | "ranks" | "quality"} of
 * @param {(numbers: any) => (Node | null)[]} build
 * @returns {() => void} to be called when the view is left
 */
export function detail(element, run, of, build) {
  let left = false;
  const waiting = h("p", { class: "note", role: "status" }, "Loading…");
  element.append(waiting);
  fetchDetail(run, of).then(
    (numbers) => {
      if (!left) waiting.replaceWith(...build(numbers).filter((part) => part !== null));
    },
    (error) => {
      waiting.textContent = error instanceof Error ? error.message : String(error);
    },
  );
  return () => {
    left = true;
  };
}
