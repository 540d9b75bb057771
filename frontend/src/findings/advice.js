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

/**
 * The one directory that TensorBoard shows, as a job may write into it; "" under --logdir_spec, which has several.
 * @param {string} logdir
 */
export const folderOf = (logdir) => (logdir.includes(",") ? "" : logdir.replace(/(?<=.)\/$/, ""));

/**
 * A path as a shell takes it.
 * @param {string} path
 */
export const quoted = (path) => (/^[\w./%-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`);

/**
 * A command with the log directory in it.
 * @param {string} command with the word LOGDIR where a path belongs
 * @param {string} logdir "" leaves the word
 */
export const filled = (command, logdir) => (logdir ? command.replace(/\bLOGDIR\b/, () => quoted(logdir)) : command);
