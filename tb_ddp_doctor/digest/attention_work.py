"""The least work of fused attention: the products of queries and keys, and of scores and values, of all backends.

Scores that a mask leaves out need not be computed. A query sees the keys from `left` before its own place up to `right`
behind it; causal attention has `right` = 0. With more keys than queries, as where answers go on from a cache, the
queries are the last rows of the keys (FlashAttention, AMD's, xFormers' from the bottom right); torch's own
`is_causal=True` counts places of both from the first.

    4 keys, 2 queries      from the bottom right  x x x .        from the top left  x . . .
                                                  x x x x                           x x . .

Sources: the schemas of `native_functions.yaml` (torch 2.9), `hopper/flash_api.cpp` of flash-attention 3, and
`aiter/ops/mha.py` for the order of inputs; Dao et al., "FlashAttention" (NeurIPS 2022), section 3.1, for the backward
pass, which has five products for forward's two.
"""

from __future__ import annotations

import msgspec

from tb_ddp_doctor.digest.least_work import Work, WorkOf
from tb_ddp_doctor.digest.model import GpuTime
from tb_ddp_doctor.digest.operator_inputs import Inputs, Tensor

#: xFormers' numbers of masks: none, causal from the top left, and causal from the bottom right.
_FROM_TOP, _FROM_BOTTOM = "1", "2"


class _Attention(msgspec.Struct, frozen=True, kw_only=True):
    """Where an operator has what; `None` for what it has not."""

    #: Queries, keys and values begin at this input.
    first: int = 0
    #: Whether it is causal: True, or xFormers' number of a mask.
    causal: int
    #: How many keys before its own place a query sees (-1: all); the next input says how many behind it.
    window: int | None = None
    #: Whether tensors are (B, rows, heads, width), and not (B, heads, rows, width).
    by_rows: bool = False
    backward: bool = False
    #: Whether masks count from the bottom right.
    from_bottom: bool = False
    #: Where sequences that lie one after the other begin, and the longest length.
    starts: int | None = None
    longest: int | None = None
    #: Inputs that say how much of the keys is used, or where it lies: what is read is not known with any of them.
    parts: tuple[int, ...] = ()


class ScoreMask(msgspec.Struct, frozen=True):
    """Which scores count."""

    left: int | None
    right: int | None
    from_bottom: bool

    def seen(self, queries: int, keys: int) -> int:
        """How many scores of (queries, keys) count."""
        own = keys - queries if self.from_bottom else 0
        until = queries * keys if self.right is None else _sum_of_clipped(own + self.right + 1, queries, keys)
        return until - (0 if self.left is None else _sum_of_clipped(own - self.left, queries, keys))


def _sum_of_clipped(first: int, count: int, most: int) -> int:
    """The sum of so many whole numbers from `first` on, each at least 0 and at most `most`."""
    begin = max(first, 0)
    left = max(count - (begin - first), 0)
    rising = min(max(most - begin, 0), left)
    return rising * begin + rising * (rising - 1) // 2 + (left - rising) * most


def sum_of_seen(queries: int, keys: int) -> int:
    """Scores at or below the diagonal of (queries, keys), which begins at the first of both."""
    return ScoreMask(None, 0, from_bottom=False).seen(queries, keys)


def _work(at: _Attention) -> WorkOf:
    """Heads that share keys and values (grouped) read these once. Backward reads the output and its gradient too, and
    writes three gradients.
    """

    def function(inputs: Inputs) -> Work:
        query, key, value = (inputs.tensor(at.first + index) for index in range(3))
        if any(map(inputs.has, at.parts)):
            raise LookupError
        mask = _mask(at, inputs)
        most = 0
        if at.starts is not None and inputs.has(at.starts):
            scores, most = _of_packed(_packed(query), _packed(key), inputs, at, mask)
        else:
            if not len(query.sizes) == len(key.sizes) == len(value.sizes) == 4:
                raise ValueError
            rows = -3 if at.by_rows else -2
            queries, keys = query.sizes[rows], key.sizes[rows]
            scores = query.elements // max(queries * query.sizes[-1], 1) * mask.seen(queries, keys)
        return _of_scores(query, key, value, scores, most, backward=at.backward)

    return function


def _mask(at: _Attention, inputs: Inputs) -> ScoreMask:
    text = inputs.value(at.causal)
    left, right = (None, None) if at.window is None else (_width(inputs, at.window), _width(inputs, at.window + 1))
    if text in ("True", _FROM_TOP, _FROM_BOTTOM):
        right = 0
    return ScoreMask(left, right, at.from_bottom or text == _FROM_BOTTOM)


def _width(inputs: Inputs, index: int) -> int | None:
    text = inputs.value(index)
    return int(text) if text.isdigit() else None


def _of_scores(query: Tensor, key: Tensor, value: Tensor, scores: int, most: int, *, backward: bool) -> Work:
    """Attention that computes so many scores, over all heads, and `most` at most where that is not certain."""
    flops, most = (2 * count * (query.sizes[-1] + value.sizes[-1]) for count in (scores, most))
    rows = query.elements // max(query.sizes[-1], 1)
    made, statistics = rows * value.sizes[-1] * query.element, rows * 4
    given = query.bytes + key.bytes + value.bytes
    if backward:
        read = given + 2 * made + statistics
        return Work(GpuTime.ATTENTION, flops * 5 // 2, read, given, most_flops=most * 5 // 2)
    return Work(GpuTime.ATTENTION, flops, given, made + statistics, most_flops=most)


def _packed(tensor: Tensor) -> tuple[int, int]:
    """Rows and heads of sequences one after the other: (rows, heads, width), or that in a batch of one."""
    sizes = tensor.sizes[1:] if len(tensor.sizes) == 4 and tensor.sizes[0] == 1 else tensor.sizes
    rows, heads, _ = sizes
    return rows, heads


def _of_packed(
    query: tuple[int, int], key: tuple[int, int], inputs: Inputs, at: _Attention, mask: ScoreMask
) -> tuple[int, int]:
    """The fewest and the most scores of packed sequences. Lengths are not recorded, only how many and the longest.

    Sequences of equal lengths have the fewest scores, as many as fit of the longest length the most. Raises LookupError
    where keys have other lengths than queries.
    """
    if at.starts is None or at.longest is None:
        raise LookupError
    (rows, heads), count = query, inputs.tensor(at.starts).elements - 1
    longest = int(inputs.value(at.longest))
    if key[0] != rows or count < 1 or not 0 < longest <= rows:
        raise LookupError
    fewest = count * mask.seen(rows // count, rows // count)
    whole, rest = divmod(rows, longest)
    most = whole * mask.seen(longest, longest) + mask.seen(rest, rest)
    return heads * fewest, heads * max(fewest, most)


def _each(at: _Attention, *operators: str) -> dict[str, WorkOf]:
    return dict.fromkeys(operators, _work(at))


def _of_heads(causal: int, *, backward: bool = False) -> _Attention:
    """Torch's own, from the top left: queries, keys and values are inputs 0 to 2, of backward 1 to 3."""
    return _Attention(first=int(backward), causal=causal, backward=backward)


def _of_rows(causal: int, *, backward: bool = False) -> _Attention:
    """FlashAttention's, whose window follows what says whether it is causal."""
    return _Attention(
        first=int(backward), causal=causal, window=causal + 1, by_rows=True, backward=backward, from_bottom=True
    )


def _of_sequences(causal: int, starts: int, longest: int, *parts: int, backward: bool = False) -> _Attention:
    """The same of sequences one after the other."""
    return msgspec.structs.replace(_of_rows(causal, backward=backward), starts=starts, longest=longest, parts=parts)


ATTENTION_WORK: dict[str, WorkOf] = {
    **_each(_of_heads(10), "aten::_cudnn_attention_forward"),
    **_each(_of_heads(6), "aten::_scaled_dot_product_cudnn_attention"),
    **_each(
        _of_heads(14, backward=True),
        *("aten::_cudnn_attention_backward", "aten::_scaled_dot_product_cudnn_attention_backward"),
    ),
    **_each(_of_heads(4), "aten::_scaled_dot_product_flash_attention"),
    **_each(_of_heads(11, backward=True), "aten::_scaled_dot_product_flash_attention_backward"),
    **_each(_of_heads(6), "aten::_scaled_dot_product_efficient_attention"),
    **_each(_of_heads(11, backward=True), "aten::_scaled_dot_product_efficient_attention_backward"),
    **_each(_Attention(causal=9, by_rows=True, starts=4, longest=6, parts=(12,)), "aten::_efficient_attention_forward"),
    **_each(
        _Attention(first=1, causal=14, by_rows=True, starts=6, longest=8, backward=True),
        "aten::_efficient_attention_backward",
    ),
    **_each(
        _Attention(causal=8, window=11, by_rows=True, from_bottom=True, starts=3, longest=5, parts=(13,)),
        "aten::_flash_attention_forward",
    ),
    **_each(
        _Attention(first=1, causal=11, window=15, by_rows=True, from_bottom=True, starts=6, longest=8, backward=True),
        "aten::_flash_attention_backward",
    ),
    **_each(_of_rows(5), "flash_attn::_flash_attn_forward"),
    **_each(_of_rows(11, backward=True), "flash_attn::_flash_attn_backward"),
    **_each(_of_sequences(9, 3, 5, 15, 17), "flash_attn::_flash_attn_varlen_forward"),
    **_each(_of_sequences(15, 9, 11, backward=True), "flash_attn::_flash_attn_varlen_backward"),
    **_each(_of_sequences(24, 7, 12, 10, 11, 14), "flash_attn_3::fwd"),
    **_each(_of_sequences(16, 9, 13, 11, 12, backward=True), "flash_attn_3::bwd"),
    # AMD's: https://github.com/ROCm/aiter, aiter/ops/mha.py.
    **_each(_of_rows(5), "aiter::_flash_attn_forward", "aiter::mha_fwd", "aiter::fmha_v3_fwd"),
    **_each(_of_rows(12, backward=True), "aiter::_flash_attn_backward"),
    **_each(_of_rows(8, backward=True), "aiter::mha_bwd", "aiter::fmha_v3_bwd"),
}
