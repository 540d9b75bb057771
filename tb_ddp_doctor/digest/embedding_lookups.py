"""FBGEMM's table-batched embeddings, which TorchRec uses: how wide rows are, and how many are looked up.

One operator looks up rows of all tables, and sums them for each feature and sample; backward updates them at once:

    fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function
        weights 7,722,480,160   indices 30,111,429   offsets 2,359,297   momentum 48,265,501
    torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>
        gradient 262,144 x 1,440

Offsets are one for each feature and sample, and an end: 9 x 262,144 + 1. Where values are recorded, all rows are
equally wide if the widest is the mean, total_D / features. Else row-wise Adagrad has one number of momentum for each
row: rows are 160 wide on average, and the gradient's 9 x 160 columns say that features are, too. Forward and backward
have no number in common: backward goes with the last lookup before it that has such a gradient, each once.

The order of inputs is that of `fbgemm_gpu/codegen` before its functions for PT2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor.digest.host_calls import HostCalls
from tb_ddp_doctor.digest.known_sizes import KnownSizes
from tb_ddp_doctor.digest.operator_inputs import Inputs, LookupSizes, Tensor, inputs
from tb_ddp_doctor.trace import names

#: Weights on the host, on the device, in unified memory, and what caches these.
_WEIGHTS = 4
#: From the offsets of rows' widths: total and largest width, rows of tables, its bits, indices, their offsets.
_TOTAL, _WIDEST, _ROWS, _INDICES, _OFFSETS, _COUNTS = 1, 2, 3, 5, 6, 8


def embedding_lookups(host: HostCalls) -> KnownSizes[LookupSizes]:
    """The lookups of a rank, forward and backward, whose rows are all equally wide."""
    looks_up = host.is_operator & host.named(names.looks_up_rows) & (host.shape >= 0)
    forward = np.flatnonzero(looks_up)
    if not len(forward):
        return KnownSizes.none()
    backward = np.flatnonzero(host.is_operator & host.named(names.updates_rows) & (host.shape >= 0))
    calls = np.concatenate((forward, backward))
    of_call: dict[int, LookupSizes] = {}
    open_lookups: list[tuple[int, LookupSizes]] = []
    for call in calls[np.argsort(host.start_ns[calls], kind="stable")].tolist():
        given = _given(host, call)
        if looks_up[call]:
            if (sizes := _sizes(given)) is not None:
                open_lookups.append((call, sizes))
        elif (at := _last(open_lookups, given)) >= 0:
            lookup, sizes = open_lookups.pop(at)
            of_call[lookup] = of_call[call] = replace(sizes, made=given.tensor(0).element, is_certain=True)
    of_call.update({call: sizes for call, sizes in open_lookups if sizes.is_certain})
    known = sorted(of_call)
    kinds = list(dict.fromkeys(of_call.values()))
    place = {sizes: index for index, sizes in enumerate(kinds)}
    which = np.array([place[of_call[call]] for call in known], np.int64)
    return KnownSizes(np.array(known, np.int64), which, kinds)


def _given(host: HostCalls, call: int) -> Inputs:
    strings, events, row = host.trace.strings, host.trace.events, host.row[call]
    sizes, types, values = (
        strings[column[row]] if column[row] >= 0 else "" for column in (events.shape, events.types, events.values)
    )
    return inputs(sizes, types, values, "")


def _last(lookups: Sequence[tuple[int, LookupSizes]], given: Inputs) -> int:
    """The place of the last of some lookups that has a gradient; -1 for none."""
    gradient = given.tensors[0][0].sizes if given.has(0) else ()
    fits = [at for at, (_, one) in enumerate(lookups) if (one.samples, one.features * one.width) == gradient]
    return fits[-1] if fits else -1


def _sizes(given: Inputs) -> LookupSizes | None:
    """Sizes of a lookup; None where rows differ in width, or are not all on the device."""
    if not all(map(given.has, range(_WEIGHTS))):
        return None
    on_host, weights, unified, _ = (given.tensor(index) for index in range(_WEIGHTS))
    first = next((at for at in range(_WEIGHTS, len(given.tensors)) if _begins(given, at)), 0)
    if on_host.elements or unified.elements or not weights.elements or not first:
        return None
    features = given.tensor(first).elements - 1
    total, widest = given.value(first + _TOTAL), given.value(first + _WIDEST)
    rows = _momentum(given, first)
    if total.isdigit() and widest.isdigit():
        width, certain = int(widest), features * int(widest) == int(total)
    elif rows and weights.elements % rows == 0:
        width, certain = weights.elements // rows, features == 1
    else:
        return None
    if not width or weights.elements % width or not (certain or not total):
        return None
    return LookupSizes(
        lookups=given.tensor(first + _INDICES).elements,
        samples=(given.tensor(first + _OFFSETS).elements - 1) // features,
        features=features,
        rows=weights.elements // width,
        width=width,
        element=weights.element,
        index=given.tensor(first + _INDICES).element,
        is_weighted=given.has(first + _COUNTS),
        is_certain=certain,
    )


def _begins(given: Inputs, at: int) -> bool:
    """Whether this input is the offsets of rows' widths: as many as those of rows, and one more than features."""
    if not all(given.has(at + more) for more in (0, _ROWS, _INDICES, _OFFSETS)):
        return False
    widths, rows, offsets = (given.tensor(at + more) for more in (0, _ROWS, _OFFSETS))
    features = widths.elements - 1
    vectors = len(widths.sizes) == len(offsets.sizes) == 1 and widths.sizes == rows.sizes
    return vectors and features > 0 and offsets.elements > 1 and (offsets.elements - 1) % features == 0


def _momentum(given: Inputs, first: int) -> int:
    """Elements of an optimizer's state: what is on the device, in unified memory, and where each table's is."""
    tables = given.tensor(first - 1).sizes if given.has(first - 1) else ()
    for at in range(first + _COUNTS + 1, len(given.tensors) - 3):
        if all(given.has(at + more) for more in range(4)):
            state, unified, *places = (given.tensor(at + more) for more in range(4))
            if state.is_float and _are_empty(unified) and all(one.sizes == tables for one in places):
                return state.elements
    return 0


def _are_empty(tensor: Tensor) -> bool:
    return tensor.is_float and tensor.sizes == (0,)
