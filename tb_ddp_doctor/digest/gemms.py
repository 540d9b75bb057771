"""Products of matrices, on tensor cores and off them."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.digest.device_events import DeviceEvents
from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.model import GemmWork, Steps
from tb_ddp_doctor.digest.shapes import dims
from tb_ddp_doctor.digest.sums import count, longest, total
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints

#: Of a product's inputs, those that are multiplied, and what is added to them.
_INPUTS = 3
#: Tensors with more dimensions, or larger ones, are no matrices of a model.
_DIMENSIONS = 8
_LARGEST = 2**40


def gemms(device: DeviceEvents, steps: Steps) -> GemmWork:
    """The products of the steps."""
    size = len(steps)
    kinds = np.where(device.computes, device.kinds(names.product), int(names.Product.NONE))
    float32, misaligned = kinds == names.Product.FLOAT32, kinds == names.Product.MISALIGNED
    slow_start, slow_end = longest(device.step, float32 | misaligned, device.start_ns, device.length_ns, size)
    return GemmWork(
        tensor_ns=total(device.step, kinds == names.Product.TENSOR, device.length_ns, size),
        float32_products=count(device.step, float32, size),
        float32_ns=total(device.step, float32, device.length_ns, size),
        misaligned_products=count(device.step, misaligned, size),
        misaligned_ns=total(device.step, misaligned, device.length_ns, size),
        slow_product_start_ns=slow_start,
        slow_product_end_ns=slow_end,
    )


def slow_inputs(host: HostCalls, device: DeviceEvents, kernels: Ints) -> list[str]:
    """What the operators that launched some kernels were given, as in "64x512, 512x30"; "" where that is not told.

    Only of products off the tensor cores: their dimensions say what to change.
    """
    described = [""] * len(kernels)
    kinds = device.kinds(names.product)[kernels]
    slow = (kinds == names.Product.FLOAT32) | (kinds == names.Product.MISALIGNED)
    asked = np.flatnonzero(slow & device.is_launched[kernels])
    around = host.around(device.launch[kernels[asked]], host.is_operator & (host.shape >= 0))
    for i, operator in zip(asked[around >= 0].tolist(), around[around >= 0].tolist(), strict=True):
        inputs = dims(host.trace.strings[host.shape[operator]])
        matrices = [sizes for sizes in inputs if 1 < len(sizes) <= _DIMENSIONS and max(sizes) <= _LARGEST]
        described[i] = ", ".join("x".join(map(str, sizes)) for sizes in matrices[:_INPUTS] if min(sizes) >= 0)
    return described
