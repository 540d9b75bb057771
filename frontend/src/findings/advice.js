// What to do about a finding: advice, and code to copy. Pure.

/** A command for a process by its number. */
const OF_PROCESS = /(^|\s)(--pid|-p)\s/;

/** @param {string} command */
export const needsProcess = (command) => OF_PROCESS.test(command);

/**
 * Commands for the process are left out once it has ended.
 * @param {import("../../schema.js").FixParts} fix
 * @param {boolean} live whether files of the run are still being written
 * @returns {[string, string]} advice, and code or ""
 */
export function advised({ advice, ended, code }, live) {
  return live || !needsProcess(code) ? [advice, code] : [ended, ""];
}
