// Where in the code a piece of evidence is: file and line with a link that opens an editor, or without stacks the ops
// around it.

import { copyButton, h } from "../dom.js";
import { shortName } from "../timeline/rows.js";
import { addressOf, chosen, choose, EDITORS } from "./editor.js";

/** @typedef {import("../model.js").Evidence} Evidence */

/** @param {Pick<Evidence, "source"> & Partial<Evidence>} evidence */
export function codeOf({ source, source_line: found, op_before: before, op_after: after }) {
  if (source) return h("span", { class: "source" }, place(source, found?.path), ` ${source.function} `, copyButton(`${source.file}:${source.line}`), found && h("code", { class: "line" }, found.text));
  if (!before && !after) return null;
  const op = (/** @type {string} */ name) => h("code", { title: name }, shortName(name));
  return h("span", { class: "source" }, before ? ["last op before: ", op(before)] : [], before && after ? "; " : null, after ? ["first op after: ", op(after)] : []);
}

/**
 * @param {import("../../schema.js").Source} source
 * @param {string} [path] of the file, where it is here
 */
function place({ file, line }, path) {
  const text = h("code", {}, `${file}:${line}`);
  const href = addressOf(chosen(), path ?? file, line);
  return href ? h("a", { href, target: "_top", class: "editor", title: "Open in the editor" }, text) : text;
}

/**
 * Which editor such links open, kept in this browser.
 * @param {() => void} changed
 */
export function editorChoice(changed) {
  const { template, folder } = chosen();
  const known = EDITORS.some((one) => one.template === template);
  const own = /** @type {HTMLInputElement} */ (h("input", { value: template, placeholder: "editor://open?file={file}&line={line}", "aria-label": "Address of the editor, with {file} and {line}", hidden: known, change: save }));
  const root = /** @type {HTMLInputElement} */ (h("input", { value: folder, placeholder: "/home/me/project", change: save }));
  const select = /** @type {HTMLSelectElement} */ (
    h("select", { change: pick }, [...EDITORS, { name: "another …", template: "custom" }].map(({ name, template: value }) => h("option", { value, selected: known ? value === template : value === "custom" }, name)))
  );
  function pick() {
    own.hidden = select.value !== "custom";
    if (own.hidden) own.value = select.value;
    save();
  }
  function save() {
    choose({ template: own.value, folder: root.value });
    changed();
  }
  return h(
    "div",
    { class: "controls editor-choice" },
    h("label", {}, "Links open", select),
    own,
    h("label", {}, "Folder of files that are not found here", root),
  );
}
