import assert from "node:assert/strict";
import { test } from "node:test";

import { hashOf, parse } from "../src/address.js";

test("a place comes back from its address, whatever is in its names", () => {
  const place = { run: 'a/b & c=d #"<img>" 50%', view: "budget", order: "busy" };
  assert.deepEqual(parse(hashOf(place)), place);
});

test("no value has a raw = in it, which TensorBoard would drop", () => {
  for (const pair of hashOf({ run: "a=b" }).split("&").slice(1)) assert.equal(pair.split("=").length, 2);
});

test("what is empty is left out", () => {
  assert.equal(hashOf({ run: "a", finding: "" }), "#ddp_doctor&p.ddp_doctor.run=a");
});

test("another tab's address is none of ours, and its values neither", () => {
  assert.equal(parse("#scalars&p.ddp_doctor.run=a"), null);
  assert.equal(parse(""), null);
  assert.deepEqual(parse("#ddp_doctor&p.other.run=a&darkMode=true"), {});
});

test("an address typed by hand with a lone % is taken as it stands", () => {
  assert.deepEqual(parse("#ddp_doctor&p.ddp_doctor.run=50%"), { run: "50%" });
});
