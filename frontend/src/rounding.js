// Made from tb_ddp_doctor/wording.py by `python tests/generate.py`. How numbers are rounded.

/** Times from so many ms on: unit in ms, its name, digits. @type {[number, number, string, number][]} */
export const TIMES = [[10000.0, 1000.0, "s", 2], [0.995, 1.0, "ms", 1], [0.01, 1.0, "ms", 2], [0.0005, 0.001, "µs", 0]];
/** The ends of intervals that are so wide have no digits, ms. */
export const WIDE_MS = 3.0;
/** Sums from so many ms on, and their digits. @type {[number, number][]} */
export const SUMS = [[10.0, 1], [1.0, 2], [0.0, 3]];
/** Intervals that end below it have two digits, as times have there, ms. */
export const FINE_MS = 0.995;
/** Shares from here on are whole percents; those below the least are not told apart. */
export const WHOLE_SHARE = 0.1;
export const LEAST_SHARE = 0.001;
