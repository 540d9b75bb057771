// Owners are told apart by everyone: seen as by the colour-blind (Machado, Oliveira and Fernandes 2009, severity 1.0),
// each two differ in OKLab by several times what can just be seen, about 0.02.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { rgb } from "../src/heat.js";
import { OWNERS } from "../src/step_parts.js";

const LEAST = 0.08;
const SEEN = {
  "trichromats": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  "deuteranopes": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  "protanopes": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  "tritanopes": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
};
const style = readFileSync(new URL("../src/style/theme.css", import.meta.url), "utf8");
const [, light, dark] = /^:root \{(.*?)^\}.*?^:root\.dark \{(.*?)^\}/ms.exec(style);

const linear = (colour) => rgb(colour).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
const times = (matrix, v) => matrix.map((row) => row.reduce((sum, factor, i) => sum + factor * v[i], 0));

function oklab(colour) {
  const cones = times(
    [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566], [0.0883024619, 0.2817188376, 0.6299787005]],
    colour,
  ).map(Math.cbrt);
  return times(
    [[0.2104542553, 0.793617785, -0.0040720468], [1.9779984951, -2.428592205, 0.4505937099], [0.0259040371, 0.7827717662, -0.808675766]],
    cones,
  );
}

for (const theme of ["light", "dark"]) {
  const owners = [...OWNERS.keys()].map((owner) => [owner, linear(OWNERS.get(owner)[theme])]);
  for (const [people, matrix] of Object.entries(SEEN)) {
    test(`${people} tell all owners apart in the ${theme} theme`, () => {
      const seen = owners.map(([owner, colour]) => [owner, oklab(times(matrix, colour).map((v) => Math.min(1, Math.max(0, v))))]);
      for (const [i, [a, one]] of seen.entries())
        for (const [b, other] of seen.slice(i + 1)) {
          const apart = Math.hypot(...one.map((v, k) => v - other[k]));
          assert.ok(apart > LEAST, `${a} and ${b} are ${apart.toFixed(3)} apart`);
        }
    });
  }
}

// What axe cannot see: text on gradients, on hatching and in canvases. WCAG AA asks for 4.5.
const luminance = (colour) => times([[0.2126, 0.7152, 0.0722]], colour)[0];
const contrast = (a, b) => {
  const [dim, bright] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (bright + 0.05) / (dim + 0.05);
};
const mixed = (share, over, under) => linear(`#${over.map((v, i) => Math.round(share * v + (1 - share) * under[i]).toString(16).padStart(2, "0")).join("")}`);

for (const [theme, block] of Object.entries({ light, dark })) {
  const named = (name) => OWNERS.get(name)?.[theme] ?? new RegExp(`--${name}: (#\\w+)`).exec(block)[1];
  test(`text on bars can be read in the ${theme} theme`, () => {
    const bar = mixed(0.3, rgb(named("compute")), rgb(named("card")));
    const pairs = [["ink", bar, "a table's bar"]];
    for (const [owner, { ink }] of OWNERS) pairs.push([ink, linear(named(owner)), owner]);
    for (const name of ["ink", "soft", "critical"]) pairs.push([name, linear(named("card")), "a card"]);
    for (const [ink, ground, where] of pairs) {
      const found = contrast(linear(named(ink)), ground);
      assert.ok(found >= 4.5, `${ink} on ${where}: ${found.toFixed(2)}`);
    }
  });
}
