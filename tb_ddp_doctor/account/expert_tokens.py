"""How many tokens experts drop or pad, by the shapes of what a mixture of experts runs.

    aten::mm            8192x4096, 4096x64    router: 8,192 tokens, 64 experts (as all ranks of ep have together)
    aten::gather        8192x64, 8192x8       8 of the experts for each token: 65,536 rows
    aten::index_select  8192x4096, 62259      the rows that are sent: 3,277 are dropped
    aten::_grouped_mm   65536x4096, 8x4096x.. the rows that experts multiply: 3,277 more than were sent are padding

Shapes have to be recorded. What libraries fuse (Transformer Engine's GroupedLinear, DeepEP's permutes) has no shapes in
a digest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import RankDigest

_PRODUCTS = ("aten::mm", "aten::addmm")
_GROUPED, _SELECT = "aten::_grouped_mm", "aten::index_select"
#: Operators that are given scores of experts and which of these are chosen.
_CHOOSE = ("aten::gather", "aten::scatter", "aten::scatter_")
_MATRIX, _MATRICES = 2, 3

Dims = tuple[int, ...]


class ExpertTokens(msgspec.Struct, frozen=True):
    """What a rank has of one layer in one forward or backward pass, mean over ranks, layers and steps."""

    tokens: float
    #: Experts of each token, and of all ranks.
    top: int
    experts: int
    #: Width of a token.
    hidden: int
    #: Rows that are sent to experts, and rows that experts multiply; 0 where that is not in the shapes.
    sent: float
    multiplied: float

    @property
    def routed(self) -> float:
        """Rows that the router asks for."""
        return self.tokens * self.top

    @property
    def all_sent(self) -> bool:
        """Whether shapes show that as many rows are sent as the router asks for."""
        return self.sent > 0 and round(self.sent) == round(self.routed)

    def said(self, each_sends: float = 0.0) -> Iterator[str]:
        """Sentences on dropped and padded tokens. `each_sends` is how many rows AllToAlls of equal parts send."""
        whole = wording.whole
        sent = self.sent or each_sends
        given, arrive = round(sent or self.routed), round(self.multiplied)
        said = (
            f"The router sends each of a rank's {whole(self.tokens)} tokens to {self.top} of {self.experts} experts, "
            f"{whole(self.routed)} rows"
        )
        if sent:
            yield f"{said}{_sent(given, round(self.routed))}."
        elif arrive:
            yield f"{said}."
        if arrive == given or not arrive:
            return
        # Rows that are sent were dropped before. Without their number the difference may have both.
        least = "" if sent else "at least "
        less, more = sorted((arrive, given))
        what = "padding" if arrive > given else "dropped"
        yield (
            f"Experts multiply {whole(arrive)} rows, on the mean rank: {least}{whole(more - less)} "
            f"({wording.percent((more - less) / more)}) are {what}."
        )


def _sent(sent: int, routed: int) -> str:
    """How many rows are sent, and what that says of those that the router asks for."""
    if sent == routed:
        return ", and all are sent: none is dropped"
    share = wording.percent(abs(sent - routed) / max(sent, routed))
    count = wording.whole(abs(sent - routed))
    if sent < routed:
        return f", of which {wording.whole(sent)} are sent: {count} ({share}) are dropped"
    return f", and {wording.whole(sent)} are sent: at least {count} ({share}) are padding"


def expert_tokens(digests: Sequence[RankDigest], ranks: int, *, whole: bool) -> ExpertTokens | None:
    """The tokens of a job whose experts are spread over groups of so many ranks; None where shapes do not tell.

    `whole` says that all ranks are traced: only then are the rows that experts multiply those that ranks send.
    """
    known = [one for one in (_of_rank(digest, ranks) for digest in digests) if one is not None]
    shapes = {(one.top, one.experts, one.hidden) for one in known}
    if len(shapes) != 1:
        return None
    top, experts, hidden = shapes.pop()
    has_all = whole and all(one.multiplied.calls for one in known)
    return ExpertTokens(
        tokens=_mean(one.tokens for one in known),
        top=top,
        experts=experts,
        hidden=hidden,
        sent=_mean(one.sent for one in known) if all(one.sent.calls for one in known) else 0.0,
        multiplied=_mean(one.multiplied for one in known) if has_all else 0.0,
    )


class _Rows(msgspec.Struct):
    """Rows of some calls."""

    calls: int = 0
    rows: int = 0

    def add(self, rows: int, calls: int) -> None:
        self.calls += calls
        self.rows += rows * calls


class _OfRank(msgspec.Struct, frozen=True):
    """What the shapes of one rank say."""

    tokens: _Rows
    top: int
    experts: int
    hidden: int
    sent: _Rows
    multiplied: _Rows


def _mean(some: Iterator[_Rows]) -> float:
    every = [*some]
    return sum(one.rows for one in every) / max(sum(one.calls for one in every), 1)


def _of_rank(digest: RankDigest, ranks: int) -> _OfRank | None:
    """What a rank's shapes say of its experts.

    None unless they show, without contradiction, the experts, the router's scores and the choice of experts.
    """
    shapes = _shapes(digest)
    multiplied, groups = _multiplied(shapes)
    if len(groups) != 1:
        return None
    experts, hidden, tokens = groups.pop() * ranks, set[int](), _Rows()
    for operator in _PRODUCTS:
        for dims, calls in shapes[operator]:
            # That of addmm is given what it adds first.
            left, right = dims[-2:] if len(dims) > 1 else ((), ())
            if len(left) == len(right) == _MATRIX and left[1] == right[0] != experts == right[1]:
                hidden.add(right[0])
                tokens.add(left[0], calls)
    tops = {
        chosen[1]
        for operator in _CHOOSE
        for (scores, chosen, *_), _ in ((dims, calls) for dims, calls in shapes[operator] if len(dims) > 1)
        if len(scores) == len(chosen) == _MATRIX and scores[1] == experts and chosen[0] == scores[0]
    }
    if len(hidden) != 1 or len(tops) != 1 or not 0 < min(tops) < experts:
        return None
    width, sent = hidden.pop(), _Rows()
    for dims, calls in shapes[_SELECT]:
        if len(dims) > 1 and len(dims[0]) == _MATRIX and dims[0][1] == width and len(dims[1]) == 1:
            sent.add(dims[1][0], calls)
    return _OfRank(tokens, tops.pop(), experts, width, sent, multiplied)


def _multiplied(shapes: dict[str, list[tuple[list[Dims], int]]]) -> tuple[_Rows, set[int]]:
    """The rows of products of rows with each group's matrix, and how many groups they have."""
    rows, groups = _Rows(), set[int]()
    for dims, calls in shapes[_GROUPED]:
        if len(dims) > 1 and len(dims[0]) == _MATRIX and len(dims[1]) == _MATRICES:
            rows.add(dims[0][0], calls)
            groups.add(dims[1][0])
    return rows, groups


def _shapes(digest: RankDigest) -> dict[str, list[tuple[list[Dims], int]]]:
    """By operator what its calls are given, sizes of tensors, and how many calls there are of each."""
    calls, counted = digest.roofline.calls, defaultdict[str, list[tuple[list[Dims], int]]](list)
    wanted = {*_PRODUCTS, _GROUPED, _SELECT, *_CHOOSE}
    for operator, given, count in zip(
        calls.operator.tolist(), calls.inputs.tolist(), calls.count.tolist(), strict=True
    ):
        if (name := digest.strings[operator]) in wanted and (dims := _dims(digest.strings[given])):
            counted[name].append((dims, count))
    return counted


def _dims(text: str) -> list[Dims]:
    """The sizes in "8192x64, 8192x8"; none of a text that was cut short."""
    try:
        return [tuple(int(size) for size in one.split("x")) for one in text.split(", ")] if text else []
    except ValueError:
        return []
