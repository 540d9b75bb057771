// What people wrote about findings: pinned, commented, marked as fixed. It is kept in one file beside the logs, or in this
// browser where that directory cannot be written. A note belongs to what a finding says, so later runs show it too.

import { fetchNotes, keepNote } from "./api.js";

/** @typedef {import("./model.js").Finding} Finding */
/** @typedef {{comment: string, pinned: boolean, fixed_in: string}} Note `fixed_in`: the run in which it was marked as fixed, "" if it was not */

const KEPT = "ddp_doctor.notes";
const MOST_KEY = 300;
/** @type {Note} */
const NONE = { comment: "", pinned: false, fixed_in: "" };

/** @type {Map<string, Note>} */
let notes = new Map();
let isWritable = false;
/** @type {Promise<void> | null} */
let asked = null;
/** Called when notes have changed. @type {Set<() => void>} */
const followers = new Set();

/** What a note is kept under: what a finding says. @param {Pick<Finding, "rule" | "cause" | "ranks">} finding */
export const keyOf = ({ rule, cause, ranks }) => [rule, cause ?? "", ranks.join(",")].join(" ").slice(0, MOST_KEY);

/**
 * What is to be seen of a note beside its finding, in a run.
 * @param {Note} note
 * @param {string} run
 * @returns {[string, string][]} kind and text
 */
export function tagsOf({ comment, pinned, fixed_in }, run) {
  /** @type {[string, string][]} */
  const tags = [];
  if (fixed_in) tags.push(fixed_in === run ? ["fixed", "marked as fixed"] : ["back", `back: was marked as fixed in ${fixed_in}`]);
  if (pinned) tags.push(["pinned", "pinned"]);
  if (comment) tags.push(["comment", comment]);
  return tags;
}

/** @param {Finding} finding */
export const noteOf = (finding) => notes.get(keyOf(finding)) ?? NONE;

/** Where notes are kept, in words. */
export const place = () => (isWritable ? "Kept in ddp_doctor_notes.json in the log directory." : "Kept in this browser: the log directory cannot be written.");

/** Ask for the notes once; what shows them is told. */
function askForNotes() {
  asked ??= fetchNotes()
    .then((found) => {
      isWritable = found.writable;
      take(isWritable ? found.notes : { ...found.notes, ...inBrowser() });
    })
    .catch(() => take(inBrowser()));
}

/** @param {() => void} changed @returns {() => void} to be called when nobody looks any more */
export function followNotes(changed) {
  followers.add(changed);
  askForNotes();
  return () => followers.delete(changed);
}

/**
 * @param {Finding} finding
 * @param {Partial<Note>} changes
 */
export async function change(finding, changes) {
  const note = { ...noteOf(finding), ...changes };
  const key = keyOf(finding);
  if (isWritable) return take((await keepNote({ key, ...note })).notes);
  const every = { ...inBrowser(), [key]: note };
  localStorage.setItem(KEPT, JSON.stringify(every));
  take(Object.fromEntries([...notes, [key, note]]));
}

/** @param {Record<string, Note>} found */
function take(found) {
  notes = new Map(Object.entries(found));
  for (const changed of followers) changed();
}

/** @returns {Record<string, Note>} */
function inBrowser() {
  try {
    const found = JSON.parse(localStorage.getItem(KEPT) ?? "{}");
    return found && typeof found === "object" ? found : {};
  } catch {
    return {};
  }
}
