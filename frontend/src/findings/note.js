// A finding's note: its tags beside the title, and where it is written.

import { isReport } from "../api.js";
import { h } from "../dom.js";
import { change, followNotes, noteOf, place, tagsOf } from "../notes.js";

/** @typedef {import("../model.js").Finding} Finding */

const LONGEST = 1000;

/**
 * What somebody wrote about a finding, in a few words; it changes as notes do, for as long as it is on the page.
 * @param {Finding} finding
 * @param {string} run
 */
export function noteTags(finding, run) {
  const tags = h("span", { class: "note-tags" });
  if (isReport) return tags;
  const draw = () => tags.replaceChildren(...tagsOf(noteOf(finding), run).map(([kind, text]) => h("span", { class: `note-tag ${kind}`, title: kind === "comment" ? text : null }, text)));
  let seen = false;
  const leave = followNotes(() => {
    // What was not on the page yet may come to be; what was, and is no more, does not come back.
    if (seen && !tags.isConnected) return leave();
    seen ||= tags.isConnected;
    draw();
  });
  draw();
  return tags;
}

/**
 * Where a note is written; null in a report.
 * @param {Finding} finding
 * @param {string} run
 */
export function noteEditor(finding, run) {
  if (isReport) return null;
  const box = /** @type {HTMLTextAreaElement} */ (h("textarea", { rows: 2, maxlength: LONGEST, "aria-label": "Note on this finding", placeholder: "What you found out, who looks at it, the change that fixes it" }));
  const said = h("span", { class: "note", role: "status" });
  const save = button("Save note", () => keep({ comment: box.value.trim() }));
  const pin = button("Pin", () => keep({ pinned: !noteOf(finding).pinned }));
  const fix = button("Mark as fixed", () => keep({ fixed_in: noteOf(finding).fixed_in === run ? "" : run }));
  box.value = noteOf(finding).comment;
  show();
  return h("div", { class: "note-editor" }, h("h3", {}, "Note"), box, h("p", { class: "ways" }, save, pin, fix, said));

  /** @param {Partial<import("../notes.js").Note>} changes */
  async function keep(changes) {
    try {
      await change(finding, changes);
      said.textContent = place();
    } catch (error) {
      said.textContent = error instanceof Error ? error.message : String(error);
    }
    show();
  }

  function show() {
    const { pinned, fixed_in } = noteOf(finding);
    pin.setAttribute("aria-pressed", String(pinned));
    fix.setAttribute("aria-pressed", String(fixed_in === run));
  }
}

/**
 * @param {string} text
 * @param {() => void} click
 */
const button = (text, click) => h("button", { type: "button", click }, text);
