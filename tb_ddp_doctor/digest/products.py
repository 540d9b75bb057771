"""Products of matrices, on tensor cores and off them."""

from __future__ import annotations

from tb_ddp_doctor.digest.owners import by_name
from tb_ddp_doctor.digest.sums import count, longest, total
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints, RankTrace


def products(trace: RankTrace, rows: Ints, step: Ints, size: int) -> dict[str, Ints]:
    """Columns of `StepWork`, from compute kernels `rows`, and the step of each."""
    kinds = by_name(trace, rows, names.product)
    start, length = trace.events.start_ns[rows], trace.events.duration_ns[rows]
    float32, misaligned = kinds == names.Product.FLOAT32, kinds == names.Product.MISALIGNED
    slow_start, slow_end = longest(step, float32 | misaligned, start, length, size)
    return {
        "tensor_ns": total(step, kinds == names.Product.TENSOR, length, size),
        "float32_products": count(step, float32, size),
        "float32_ns": total(step, float32, length, size),
        "misaligned_products": count(step, misaligned, size),
        "misaligned_ns": total(step, misaligned, length, size),
        "slow_product_start_ns": slow_start,
        "slow_product_end_ns": slow_end,
    }
