"""What an operator is given: sizes and types of its tensors, and the values of its other inputs.

    "Input Dims"       [[5185, 1024], [1024, 1024], []]
    "Input type"       ["c10::BFloat16", "c10::BFloat16", "Scalar"]
    "Concrete Inputs"  ["", "", "1"]

A list of tensors has a list of sizes where a tensor has its sizes. Its type, "TensorList", does not say of what.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from tb_ddp_doctor.storage.message import REFUSALS
from tb_ddp_doctor.trace import names

Dims: TypeAlias = tuple[int, ...]

#: torch's own limit. Products of sizes from a file without one could take any time.
_MOST_DIMENSIONS = 64
#: More tensors in a list than any optimizer updates at once.
_MOST_TENSORS = 1 << 16
_LIST = "TensorList"
#: Bytes of an element by c10's number of its type, as inputs have it: "15" is bfloat16.
BYTES_BY_CODE = {"0": 1, "1": 1, "2": 2, "3": 4, "4": 8, "5": 2, "6": 4, "7": 8, "11": 1, "15": 2, "23": 1, "24": 1}


class Tensor(msgspec.Struct, frozen=True):
    """A tensor's sizes, and the bytes of an element."""

    sizes: Dims
    element: int
    is_float: bool = True

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        return self.elements * self.element


class LinearSizes(NamedTuple):
    """Rows of (rows, inner) are multiplied by (inner, outer): each by one of so many matrices."""

    rows: int
    inner: int
    outer: int
    matrices: int
    #: What the layer's output has for `outer`, where that are all columns of several matrices; 0 elsewhere.
    made: int = 0

    @property
    def flops(self) -> int:
        """Operations of the product, a multiplication and an addition each."""
        return 2 * self.rows * self.inner * self.outer


class LookupSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of embedding tables that are looked up, and summed for each sample and feature."""

    lookups: int
    samples: int
    features: int
    #: Rows of all tables, and elements of each.
    rows: int
    width: int
    #: Bytes of an element of a row, of an index, and of an element of the sums (0 if unknown).
    element: int
    index: int
    made: int = 0
    #: Whether each lookup counts differently: a float32 number for each.
    is_weighted: bool
    #: Whether all rows are as wide for certain.
    is_certain: bool


class Inputs(msgspec.Struct, frozen=True):
    """The inputs of one call, in the operator's order."""

    #: The tensors of each input: one of a tensor, several of a list, none of anything else.
    tensors: tuple[tuple[Tensor, ...], ...]
    #: Type of each input as the file spells it, and the text of those that are no tensors; "" if not recorded.
    types: tuple[str, ...]
    values: tuple[str, ...]
    #: Sizes of a convolution's output, where a backward pass tells them; empty if unknown.
    output: Dims = ()
    #: Sizes of a linear layer, where forward and backward tell them; None if unknown.
    linear: LinearSizes | None = None
    #: What an embedding looks up, or backward updates, where forward and backward tell it; None if unknown.
    looked_up: LookupSizes | None = None
    #: The grid of the longest kernel, where it tells how much is gathered; empty elsewhere.
    grid: Dims = ()

    def tensor(self, index: int) -> Tensor:
        """A tensor. Raises LookupError where that input is none."""
        return self.tensors[index][0]

    def has(self, index: int) -> bool:
        """Whether an input is a tensor, or a list of some."""
        return index < len(self.tensors) and bool(self.tensors[index])

    def every(self, *but: int) -> list[Tensor]:
        """All tensors, but for those of some inputs."""
        return [one for index, some in enumerate(self.tensors) if index not in but for one in some]

    def value(self, index: int) -> str:
        """The text of an input that is no tensor, "" where it is not recorded."""
        return self.values[index] if index < len(self.values) else ""

    def is_true(self, index: int) -> bool:
        """Whether an input is recorded as True."""
        return self.value(index) == "True"

    def integers(self, index: int) -> list[int]:
        """A list of whole numbers, as "[2, 2]". Raises LookupError where it is not recorded."""
        return _integers(self.value(index))


def inputs(sizes: str, types: str, values: str, kernel: str, listed: int = 0) -> Inputs:
    """What a call is given, from its raw JSON, "" for what is not recorded.

    Where types are missing, as those of tensors in a list, the name of a kernel that the call launched may tell. Lists
    whose sizes are not recorded have `listed` elements, 0 for unknown.
    """
    spelled = _texts(types)
    of_kernel = names.element_type(kernel)
    tensors: list[tuple[Tensor, ...]] = []
    for index, raw in enumerate(_raw_list(sizes)):
        kind = spelled[index] if index < len(spelled) else "" if spelled else of_kernel
        is_list = kind == _LIST
        if is_list and bytes(raw) == b"[]":
            # Of a long list torch records no sizes.
            element = names.OPERATOR_ELEMENT_BYTES.get(of_kernel, 0)
            tensors.append((Tensor((listed,), element),) if listed and element else ())
        else:
            tensors.append(_tensors(raw, of_kernel if is_list else kind))
    return Inputs(tuple(tensors), spelled, _texts(values))


def count_of(tensors: Sequence[Tensor]) -> int:
    """Bytes of some tensors."""
    return sum(one.bytes for one in tensors)


def _tensors(raw: msgspec.Raw, kind: str) -> tuple[Tensor, ...]:
    """The tensors of one input; none where their type is not known."""
    element = names.OPERATOR_ELEMENT_BYTES.get(kind, 0)
    if not element:
        return ()
    is_float = kind in names.FLOATING_TYPES
    try:
        return (_tensor(msgspec.json.decode(raw, type=tuple[int, ...]), element, is_float),)
    except REFUSALS:
        pass
    try:
        several = msgspec.json.decode(raw, type=list[tuple[int, ...]])
    except REFUSALS:
        return ()
    return tuple(_tensor(sizes, element, is_float) for sizes in several[:_MOST_TENSORS])


def _tensor(sizes: Dims, element: int, is_float: bool) -> Tensor:
    possible = len(sizes) <= _MOST_DIMENSIONS and all(0 <= size < 1 << 48 for size in sizes)
    return Tensor(sizes if possible else (0,), element, is_float)


def _raw_list(text: str) -> list[msgspec.Raw]:
    try:
        return msgspec.json.decode(text, type=list[msgspec.Raw])
    except REFUSALS:
        return []


def _texts(text: str) -> tuple[str, ...]:
    """A list of texts; what is none of them is ""."""
    texts = []
    for raw in _raw_list(text):
        try:
            texts.append(msgspec.json.decode(raw, type=str))
        except REFUSALS:
            texts.append("")
    return tuple(texts)


def _integers(text: str) -> list[int]:
    try:
        return msgspec.json.decode(text, type=list[int])
    except REFUSALS:
        raise LookupError(text) from None
