// The number of a finding, as `ddp-doctor slice --finding` takes it: the same in the bar, the list and the terminal.

import { h } from "../dom.js";

/** @param {number} number */
export const badge = (number) => h("span", { class: "badge", title: `Finding ${number}` }, String(number));
