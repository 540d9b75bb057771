// The address that opens a file at a line in an editor. What is chosen stays in this browser.

/** @typedef {{template: string, folder: string}} Editor a template with {file} and {line}, "" for none; what relative files are in */

/** @type {{name: string, template: string}[]} */
export const EDITORS = [
  { name: "VS Code", template: "vscode://file/{file}:{line}" },
  { name: "VS Code on the SSH host", template: "vscode://vscode-remote/ssh-remote+{host}{file}:{line}" },
  { name: "Cursor", template: "cursor://file/{file}:{line}" },
  { name: "PyCharm", template: "pycharm://open?file={file}&line={line}" },
  { name: "no editor", template: "" },
];
const KEY = "ddp-doctor-editor";
/** An address of these would run something in this page. */
const RUNS = /^\s*(javascript|data|vbscript|blob|about):/i;
const SCHEME = /^[a-z][a-z0-9+.-]*:/i;

/** @returns {Editor} */
export function chosen() {
  const first = { template: EDITORS[0].template, folder: "" };
  try {
    const { template, folder } = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    return { template: typeof template === "string" ? template : first.template, folder: typeof folder === "string" ? folder : "" };
  } catch {
    return first; // no storage here, or not ours
  }
}

/** @param {Editor} editor */
export function choose(editor) {
  try {
    localStorage.setItem(KEY, JSON.stringify(editor));
  } catch {
    // Links keep the first editor.
  }
}

/**
 * The address of a line; null where the template is none, or the file's folder is not known. What comes from a trace is
 * encoded: it is a file's name and nothing else.
 * @param {Editor} editor
 * @param {string} file
 * @param {number} line
 * @param {string} [host] of this page
 */
export function addressOf({ template, folder }, file, line, host = globalThis.location?.hostname ?? "") {
  if (!SCHEME.test(template) || RUNS.test(template)) return null;
  const absolute = /^(\/|[a-z]:[\\/])/i.test(file);
  if (!absolute && !folder) return null;
  const path = absolute ? file : `${folder.replace(/[\\/]+$/, "")}/${file}`;
  const encoded = path.replace(/\\/g, "/").split("/").map(encodeURIComponent).join("/").replace(/^([a-z])%3A/i, "$1:");
  const inQuery = template.includes("?");
  return template
    .replace("{host}", encodeURIComponent(host))
    .replace(/(\/?)\{file\}/, (_, slash) => (slash && encoded.startsWith("/") && !inQuery ? encoded : slash + encoded))
    .replace("{line}", String(line));
}
