// What to do about a finding: advice, and code to copy. Pure.

import { split } from "../dom.js";

/** A command for a process by its number. */
const OF_PROCESS = /(^|\s)(--pid|-p)\s/;
/** What leads over to such commands. */
const WHILE_IT_RUNS = /\s*While it [^.:]*:$/;

/** @param {string} command */
export const needsProcess = (command) => OF_PROCESS.test(command);

/**
 * Commands for the process are left out once it has ended.
 * @param {string} fix
 * @param {boolean} live whether files of the run are still being written
 * @returns {[string, string]} advice, and code or ""
 */
export function advised(fix, live) {
  const [advice, code] = split(fix);
  return live || !needsProcess(code) ? [advice, code] : [advice.replace(WHILE_IT_RUNS, ""), ""];
}
