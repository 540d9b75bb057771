import assert from "node:assert/strict";
import { test } from "node:test";

import { nameOf } from "../src/compute/kernels.js";
import { apart } from "../src/compute/names.js";

const FUNCTOR = "elementwise_kernel<128, 4, gpu_kernel_impl_nocast<BinaryFunctor<c10::BFloat16, binary_internal::";
const LAMBDA = "unrolled_elementwise_kernel<direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#";

test("a kernel without an operator has its own name, without what says nothing", () => {
  const named = (/** @type {string} */ operator, /** @type {string} */ name) => nameOf(/** @type {any} */ ({ operator, name }));
  assert.equal(named("aten::mm", "void cutlass::Kernel2<1>"), "mm");
  assert.equal(named("", "void at::native::reduce_kernel<512>"), "reduce_kernel<512>");
});

test("names that begin alike are cut to where they differ", () => {
  const names = [`${FUNCTOR}DivFunctor<float> > >(int)`, `${FUNCTOR}MulFunctor<float> > >(int)`, "ampere_sgemm_128x64_tn"];
  const written = apart(names);
  assert.match(written.get(names[0]) ?? "", /^elementwise_kernel<128, 4, gpu_kernel_impl_nocast….*DivFunctor<float>/);
  assert.match(written.get(names[1]) ?? "", /^elementwise_kernel<128, 4, gpu_kernel_impl_nocast….*MulFunctor<float>/);
  assert.equal(written.get(names[2]), names[2]);
});

test("a name that differs in two places shows both, and none is written as another", () => {
  const names = ["3", "7"].flatMap((one) => ["int", "long"].map((two) => `${LAMBDA}${one}}::operator()(at::TensorIteratorBase&, some, more, words, ${two})`));
  const written = apart(names);
  assert.equal(new Set(written.values()).size, 4);
  assert.match(written.get(names[3]) ?? "", /direct_copy_kernel_cuda….*#7}.*….*long/);
  for (const text of written.values()) assert.ok(text.length < 130);
});

test("one that another one begins with is told by its end", () => {
  const written = apart([LAMBDA, `${LAMBDA}7}`]);
  assert.equal(new Set(written.values()).size, 2);
});
