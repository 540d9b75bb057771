// The keys that a view listens to, as a window over the page.

import { h } from "./dom.js";

/**
 * @param {string} label
 * @param {[string, string][]} keys each and what it does
 * @param {...HTMLElement} more what stands below them
 */
export function keysDialog(label, keys, ...more) {
  const rows = keys.map(([key, does]) => h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, key)), h("td", {}, does)));
  const dialog = /** @type {HTMLDialogElement} */ (
    h(
      "dialog",
      { class: "keys", "aria-label": label },
      h("h2", {}, "Keys"),
      h("table", {}, h("tbody", {}, rows)),
      more,
      h("button", { type: "button", click: () => dialog.close() }, "Close"),
    )
  );
  return dialog;
}
