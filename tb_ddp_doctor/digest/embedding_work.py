"""The least work of embeddings and indices: lookups, gathers and scatters, their gradients, and caches of tokens.

A row of a table that several indices ask for is read once; what is written, and the indices, count each time.

Sources: the schemas of `aten/src/ATen/native/native_functions.yaml` (torch 2.9) for the order of inputs, and FBGEMM's
own benchmarks (`fbgemm_gpu/bench`) for what its lookups read and write.
"""

from __future__ import annotations

import math

from tb_ddp_doctor.digest.least_work import Work, WorkOf, aten, each
from tb_ddp_doctor.digest.model import GpuTime
from tb_ddp_doctor.digest.operator_inputs import Inputs, LookupSizes, count_of

_INDEX = "aten::index"
#: The fewest slices of a table that can be told from another indexed dimension.
_FEWEST_SLICES = 2
#: Bytes that a block of torch's vectorised gather copies: 256 threads of 16 (`IndexKernelUtils.cu`).
_GATHERED = 256 * 16


def takes_index_list(operator: str) -> bool:
    """Whether an operator's indices are in a list, whose sizes are not recorded."""
    return operator == _INDEX


def _embedding(inputs: Inputs) -> Work:
    """Reads the rows that are asked for: at most all of the table. Of equal rows one is read."""
    table, rows = inputs.tensor(0), inputs.tensor(1)
    width = math.prod(table.sizes[1:]) * table.element
    return Work(GpuTime.EMBEDDING, 0, rows.bytes + min(rows.elements, table.sizes[0]) * width, rows.elements * width)


def _embedding_backward(inputs: Inputs) -> Work:
    """Reads gradients and rows, and writes the whole table's gradient."""
    given, rows = inputs.tensor(0), inputs.tensor(1)
    return Work(GpuTime.EMBEDDING, 0, given.bytes + rows.bytes, int(inputs.value(2)) * given.sizes[-1] * given.element)


def _index(inputs: Inputs) -> Work:
    """Slices of the first dimension: one for each block of the grid's first dimension, which fill the second one."""
    table = inputs.tensor(0)
    count, blocks, _ = inputs.grid
    width = table.bytes // max(table.sizes[0], 1)
    if table.sizes[0] < _FEWEST_SLICES or blocks != max(-(-width // _GATHERED), 1):
        # Another dimension was indexed.
        raise LookupError
    return Work(GpuTime.EMBEDDING, 0, 8 * count + min(count, table.sizes[0]) * width, count * width)


def _index_select(inputs: Inputs) -> Work:
    table, rows, dimension = inputs.tensor(0), inputs.tensor(2), int(inputs.value(1))
    slices = table.sizes[dimension]
    width = table.bytes // max(slices, 1)
    return Work(GpuTime.EMBEDDING, 0, rows.bytes + min(rows.elements, slices) * width, rows.elements * width)


def _gather(inputs: Inputs) -> Work:
    table, indices = inputs.tensor(0), inputs.tensor(2)
    moved = indices.elements * table.element
    return Work(GpuTime.EMBEDDING, 0, indices.bytes + min(moved, table.bytes), moved)


def _scatter(inputs: Inputs) -> Work:
    """Reads indices and what goes there, and writes as much."""
    table, indices = inputs.tensor(0), inputs.tensor(2)
    source = inputs.tensor(3).bytes if inputs.has(3) else 0
    return Work(GpuTime.EMBEDDING, 0, indices.bytes + source, indices.elements * table.element)


def _index_add(inputs: Inputs) -> Work:
    source = inputs.tensor(3)
    return Work(GpuTime.EMBEDDING, 0, source.bytes + inputs.tensor(2).bytes, source.bytes)


def _index_put(inputs: Inputs) -> Work:
    """Writes as many elements as it is given; what they are added to (input 3) is read first."""
    source = inputs.tensor(2)
    if not source.sizes:
        # How many places one number goes to is told by indices, whose sizes are not recorded.
        raise LookupError
    return Work(GpuTime.EMBEDDING, 0, source.bytes * (1 + inputs.is_true(3)), source.bytes)


def _index_fill(inputs: Inputs) -> Work:
    table, rows = inputs.tensor(0), inputs.tensor(2)
    width = table.bytes // max(table.sizes[int(inputs.value(1))], 1)
    return Work(GpuTime.EMBEDDING, 0, rows.bytes, rows.elements * width)


def _take(inputs: Inputs) -> Work:
    table, indices = inputs.tensor(0), inputs.tensor(1)
    moved = indices.elements * table.element
    return Work(GpuTime.EMBEDDING, 0, indices.bytes + min(moved, table.bytes), moved)


def _nonzero(inputs: Inputs) -> Work:
    """How many there are, and so what it writes, no trace shows."""
    return Work(GpuTime.EMBEDDING, 0, inputs.tensor(0).bytes, 0)


def _bags(inputs: Inputs) -> Work:
    """Sums of rows, a sum for each offset; the last one is an end where input 7 says so."""
    table, rows, offsets = (inputs.tensor(index) for index in range(3))
    width = math.prod(table.sizes[1:]) * table.element
    read = rows.bytes + offsets.bytes + min(rows.elements, table.sizes[0]) * width
    return Work(GpuTime.EMBEDDING, 0, read, (offsets.elements - inputs.is_true(7)) * width)


def _table_batched(inputs: Inputs) -> Work:
    """FBGEMM's lookups of all tables: each row that is asked for, and its sums (its benchmarks count the same)."""
    of = inputs.looked_up
    if of is None:
        raise LookupError
    moved = min(of.lookups, of.rows) * of.width * of.element
    sums = of.samples * of.features * of.width * (of.made or of.element)
    return Work(GpuTime.EMBEDDING, 0, _of_indices(of) + moved, sums)


def _table_batched_update(inputs: Inputs) -> Work:
    """Backward of that with row-wise Adagrad: gradients, and each row and its number of momentum, read and written.

    Where lookups count differently, how much they do has gradients, too.
    """
    of = inputs.looked_up
    if of is None:
        raise LookupError
    moved = min(of.lookups, of.rows) * (of.width * of.element + 4)
    counts = 4 * of.lookups * of.is_weighted
    return Work(GpuTime.EMBEDDING, 0, inputs.tensor(0).bytes + _of_indices(of) + moved, moved + counts)


def _checked(inputs: Inputs) -> Work:
    """Reads indices and offsets, inputs 1 and 2; writes those that are no rows alone."""
    return Work(GpuTime.EMBEDDING, 0, inputs.tensor(1).bytes + inputs.tensor(2).bytes, 0)


def _of_indices(of: LookupSizes) -> int:
    """Bytes of indices, offsets, and of how much each lookup counts."""
    return of.index * (of.lookups + of.samples * of.features + 1) + 4 * of.lookups * of.is_weighted


def _bags_backward(inputs: Inputs) -> Work:
    """Gradients of the sums, rows, and the bag of each, to the whole table's gradient; input 5 is its rows."""
    given = inputs.tensor(0)
    read = given.bytes + inputs.tensor(1).bytes + inputs.tensor(2).bytes
    return Work(GpuTime.EMBEDDING, 0, read, int(inputs.value(5)) * given.sizes[-1] * given.element)


def _nll_loss(inputs: Inputs) -> Work:
    """One score for each target."""
    scores, targets = inputs.tensor(0), inputs.tensor(1)
    return Work(GpuTime.EMBEDDING, 0, targets.bytes + targets.elements * scores.element, scores.element)


def _nll_loss_backward(inputs: Inputs) -> Work:
    """One gradient for each target: the zeros of the others are an operator of their own."""
    scores, targets = inputs.tensor(1), inputs.tensor(2)
    return Work(GpuTime.EMBEDDING, 0, targets.bytes, targets.elements * scores.element)


def _routed(inputs: Inputs) -> Work:
    """Transformer Engine's: rows, input 0, once for each expert that has them, so many (input 2) in all."""
    rows, made = inputs.tensor(0), int(inputs.value(2))
    if made <= 0:
        raise LookupError
    width = rows.bytes // max(rows.sizes[0], 1)
    others = count_of(inputs.every(0))
    return Work(GpuTime.EMBEDDING, 0, min(rows.sizes[0], made) * width + others, made * width)


def _cached(parts: int) -> WorkOf:
    """Writes its first inputs to a cache, the input after them; the number of a row's place in it is read."""

    def function(inputs: Inputs) -> Work:
        given, cache = [inputs.tensor(index) for index in range(parts)], inputs.tensor(parts)
        return Work(GpuTime.EMBEDDING, 0, count_of(given), cache.element * sum(one.elements for one in given))

    return function


_OPTIMIZERS = "adagrad adam lamb lars_sgd none partial_rowwise_adam partial_rowwise_lamb rowwise_adagrad sgd"
EMBEDDING_WORK: dict[str, WorkOf] = {
    **aten(_embedding, "embedding"),
    "aten::embedding_dense_backward": _embedding_backward,
    _INDEX: _index,
    "aten::index_select": _index_select,
    "aten::gather": _gather,
    **aten(_scatter, "scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_"),
    **aten(_index_add, "index_add index_add_ index_copy index_copy_"),
    **aten(_index_put, "index_put_ _index_put_impl_"),
    "aten::index_fill_": _index_fill,
    "aten::take": _take,
    "aten::nonzero": _nonzero,
    "aten::_embedding_bag": _bags,
    # FBGEMM's: https://github.com/pytorch/FBGEMM, fbgemm_gpu/codegen and fbgemm_gpu/bench.
    **each(
        _table_batched,
        *(f"fbgemm::split_embedding_codegen_lookup_{optimizer}_function" for optimizer in _OPTIMIZERS.split()),
    ),
    "torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>": _table_batched_update,
    "fbgemm::bounds_check_indices": _checked,
    "aten::_embedding_bag_dense_backward": _bags_backward,
    **aten(_nll_loss, "nll_loss_forward nll_loss2d_forward"),
    **aten(_nll_loss_backward, "nll_loss_backward nll_loss2d_backward"),
    # vLLM's caches.
    **each(_cached(2), "_C_cache_ops::reshape_and_cache_flash", "_C_cache_ops::reshape_and_cache"),
    "_C_cache_ops::concat_and_cache_mla": _cached(2),
    # Transformer Engine's, which routes rows to experts.
    "_moe_permute_mask_map": _routed,
}
