import assert from "node:assert/strict";
import { test } from "node:test";

import { among, briefly, clockTime, decimals, moneyAndEnergy, ms, percent, ranges, remainder, signed, sumShown } from "../src/format.js";

const plain = (text) => text.replace(/\u00a0/g, " ");

test("a duration carries the unit that suits it", () => {
  const said = [0, 0.0001, 0.004, 0.5, 12.34, 9999, 12_340, -12.34].map(ms).map(plain);
  assert.deepEqual(said, ["0 ms", "0 ms", "4 µs", "0.50 ms", "12.3 ms", "9,999.0 ms", "12.34 s", "−12.3 ms"]);
});

test("thousands are apart, in prose as in tables", () => {
  const said = [[999.94, 1], [999.96, 1], [1206.84, 1], [-1234567.8912, 4], [1000, 0], [0.5, 0], [2.5, 0]].map(([value, digits]) => decimals(value, digits));
  assert.deepEqual(said, ["999.9", "1,000.0", "1,206.8", "-1,234,567.8912", "1,000", "0", "2"]);
  assert.equal(sumShown([1206.84, 0.04]).toFixed(2), "1206.84");
});

test("a sum is that of its parts as they are shown", () => {
  assert.equal(remainder(57.933, [10.61, 0.272]).toFixed(1), "47.0", "and not 47.051, which reads 47.1");
  assert.equal(sumShown([6.14, 5.14, 0.644]).toFixed(2), "11.84");
});

test("a time of day has a date and no seconds", () => {
  assert.equal(clockTime(new Date(2026, 10, 3, 9, 5, 59).getTime() / 1000), "2026-11-03 09:05");
});

test("money has its currency where that is known, and energy is a limit", () => {
  assert.equal(plain(moneyAndEnergy(1384.5, 12.53, "EUR")), "1,384.50 EUR, up to 12.5 kWh");
  assert.equal(plain(moneyAndEnergy(0, null, "")), "0.00");
  assert.equal(plain(moneyAndEnergy(null, 1234, "EUR")), "up to 1,234 kWh");
  assert.equal(moneyAndEnergy(null, null, "EUR"), "");
});

test("a share is never 0 % that is more", () => {
  assert.deepEqual([0, 0.0001, 0.05, 0.715].map(percent).map(plain), ["0 %", "<0.1 %", "5.0 %", "72 %"]);
});

test("ranks are named shortly", () => {
  assert.equal(ranges([0, 2, 3, 4, 7, 8]), "0, 2-4, 7, 8");
  assert.equal(briefly(Array.from({ length: 64 }, (_, i) => 8 * i)), "0-504, every 8th");
  assert.equal(briefly([...Array.from({ length: 64 }, (_, i) => 8 * i), 505]), "0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, … (65)");
  assert.equal(plain(among([0, 1], [0, 1], "rank")), "all 2 ranks");
  assert.equal(among([1], [0, 1], "rank"), "rank 1");
});

test("changes carry their sign, and nothing is no change", () => {
  assert.deepEqual([1.234, -1.234, 0.004, -0.004, 0].map((value) => signed(value, 2)), ["+1.23", "−1.23", "0.00", "0.00", "0.00"]);
});
