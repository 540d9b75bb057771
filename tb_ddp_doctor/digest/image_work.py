"""The least work of operators that make images of another size: pools, interpolation, padding, windows and samples.

An image is (N, C, ...), of one to three dimensions. Each is read once and each result written once; what a kernel
computes on the way is not counted, since memory limits such kernels.

Source: the schemas of `aten/src/ATen/native/native_functions.yaml` (torch 2.9) for the order of inputs, and the
documentation of `torch.nn.MaxPool2d` and `torch.nn.Unfold` for sizes of outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tb_ddp_doctor.digest.least_work import Work, WorkOf, aten
from tb_ddp_doctor.digest.model import GpuTime
from tb_ddp_doctor.digest.operator_inputs import Inputs, Tensor, count_of

#: torch's indices are int64.
_INDEX_BYTES = 8


def at(values: Sequence[int], index: int) -> int:
    """An option of an operator on images: one number counts for all dimensions."""
    return values[index] if len(values) > 1 else values[0]


def pool(dimensions: int, *, ceil: int, apart: int | None = None, index_bytes: int = 0) -> WorkOf:
    """The window, its steps and padding are inputs 1 to 3; `apart` and `ceil` are the places of dilation and ceil_mode.

    A pool that picks an element writes its index too, of `index_bytes`.
    """

    def function(inputs: Inputs) -> Work:
        taken, window = inputs.tensor(0), inputs.integers(1)
        steps, pads = inputs.integers(2) or window, inputs.integers(3)
        dilation = [1] if apart is None else inputs.integers(apart)
        also_cut = inputs.is_true(ceil)
        made = math.prod(_images(taken, dimensions))
        for i, size in enumerate(taken.sizes[-dimensions:]):
            step, pad = at(steps, i), at(pads, i)
            room = size + 2 * pad - at(dilation, i) * (at(window, i) - 1) - 1
            count = (-(-room // step) if also_cut else room // step) + 1
            # A window that the image's end cuts begins within the image or the padding before it.
            made *= count - (also_cut and (count - 1) * step >= size + pad)
        return Work(GpuTime.NORM, 0, taken.bytes, made * (taken.element + index_bytes))

    return function


def pool_to_size(index_bytes: int = 0) -> WorkOf:
    """A pool to the size that input 1 is."""

    def function(inputs: Inputs) -> Work:
        made = _resized(inputs)
        return Work(GpuTime.NORM, 0, inputs.tensor(0).bytes, made.elements * (made.element + index_bytes))

    return function


def from_gradient(kind: GpuTime) -> WorkOf:
    """Backward: reads the gradient, and indices where there are some, and writes as much as forward's input has."""

    def function(inputs: Inputs) -> Work:
        return Work(kind, 0, count_of(inputs.every(1)), inputs.tensor(1).bytes)

    return function


def interpolation(inputs: Inputs) -> Work:
    """To the size that input 1 is."""
    return Work(GpuTime.OTHER, 0, inputs.tensor(0).bytes, _resized(inputs).bytes)


def interpolation_backward(inputs: Inputs) -> Work:
    """Input 2 is the whole size of forward's input."""
    given = inputs.tensor(0)
    return Work(GpuTime.OTHER, 0, given.bytes, math.prod(inputs.integers(2)) * given.element)


def padding(inputs: Inputs) -> Work:
    """By the numbers of input 1, two for each dimension, the last dimension first."""
    taken, pads = inputs.tensor(0), inputs.integers(1)
    sizes = list(taken.sizes)
    for i in range(len(pads) // 2):
        sizes[-1 - i] += pads[2 * i] + pads[2 * i + 1]
    return Work(GpuTime.COPY, 0, taken.bytes, math.prod(sizes) * taken.element)


def windows(inputs: Inputs) -> Work:
    """Each window as a column, `torch.nn.Unfold`: window, dilation, padding and steps are inputs 1 to 4."""
    taken = inputs.tensor(0)
    window, apart, pads, steps = (inputs.integers(index) for index in range(1, 5))
    columns = math.prod(
        (size + 2 * at(pads, i) - at(apart, i) * (at(window, i) - 1) - 1) // at(steps, i) + 1
        for i, size in enumerate(taken.sizes[-2:])
    )
    made = math.prod(_images(taken, 2)) * math.prod(window) * columns
    return Work(GpuTime.COPY, 0, taken.bytes, made * taken.element)


def from_windows(inputs: Inputs) -> Work:
    """The image of which columns are the windows, `torch.nn.Fold`: its size and the window are inputs 1 and 2."""
    taken = inputs.tensor(0)
    images = math.prod(taken.sizes[:-1]) // math.prod(inputs.integers(2))
    return Work(GpuTime.COPY, 0, taken.bytes, images * math.prod(inputs.integers(1)) * taken.element)


def samples(inputs: Inputs) -> Work:
    """Of an image (N, C, ...) at the places of a grid (N, ..., dimensions)."""
    taken, grid = inputs.tensor(0), inputs.tensor(1)
    made = math.prod(taken.sizes[:2]) * math.prod(grid.sizes[1:-1]) * taken.element
    return Work(GpuTime.OTHER, 0, min(taken.bytes, made) + grid.bytes, made)


def samples_backward(inputs: Inputs) -> Work:
    """Gradients of the image and of the grid from that of the samples; which of them is input 6, "[True, False]"."""
    given, taken, grid = (inputs.tensor(index) for index in range(3))
    of_image, of_grid = (one == "True" for one in inputs.value(6).strip("[]").split(", "))
    read = given.bytes + taken.bytes * of_grid + grid.bytes
    return Work(GpuTime.OTHER, 0, read, taken.bytes * of_image + grid.bytes * of_grid)


def _images(taken: Tensor, dimensions: int) -> Sequence[int]:
    """How many images there are, and of how many channels."""
    return taken.sizes[:-dimensions]


def _resized(inputs: Inputs) -> Tensor:
    """The first input at the size that input 1 is."""
    taken, size = inputs.tensor(0), inputs.integers(1)
    if not size:
        raise LookupError
    return Tensor((*_images(taken, len(size)), *size), taken.element)


_INTERPOLATIONS = """
    upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d
    upsample_bicubic2d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa
"""
_PADS = """
    reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d
"""
_POOLS = "max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d"
_MEANS_TO_SIZE = "_adaptive_avg_pool2d _adaptive_avg_pool3d"
_MOST_TO_SIZE = "adaptive_max_pool2d adaptive_max_pool3d"
IMAGE_WORK: dict[str, WorkOf] = {
    "aten::max_pool2d_with_indices": pool(2, apart=4, ceil=5, index_bytes=_INDEX_BYTES),
    "aten::max_pool3d_with_indices": pool(3, apart=4, ceil=5, index_bytes=_INDEX_BYTES),
    "aten::avg_pool2d": pool(2, ceil=4),
    "aten::avg_pool3d": pool(3, ceil=4),
    **aten(pool_to_size(), _MEANS_TO_SIZE),
    **aten(pool_to_size(_INDEX_BYTES), _MOST_TO_SIZE),
    **aten(from_gradient(GpuTime.NORM), f"{_POOLS} {_MEANS_TO_SIZE} {_MOST_TO_SIZE}", "_backward"),
    **aten(interpolation, _INTERPOLATIONS),
    **aten(interpolation_backward, _INTERPOLATIONS, "_backward"),
    **aten(padding, _PADS),
    **aten(from_gradient(GpuTime.COPY), _PADS, "_backward"),
    "aten::im2col": windows,
    "aten::col2im": from_windows,
    **aten(samples, "grid_sampler_2d grid_sampler_3d"),
    **aten(samples_backward, "grid_sampler_2d_backward grid_sampler_3d_backward"),
}
