"""Where in the traces something is to be seen. R = ranks, S = steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor import kernel_names
from tb_ddp_doctor.digest.intervals import Intervals
from tb_ddp_doctor.digest.model import CodeOf, RankOwner
from tb_ddp_doctor.digest.spending import step_owner
from tb_ddp_doctor.facts import Facts, fact
from tb_ddp_doctor.findings import Evidence, Source
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.step_parts import IDLE, OWNERS
from tb_ddp_doctor.trace import names
from tb_ddp_doctor.trace.model import Ints

#: Which code an owner's time is of; the host's where nothing stands here.
_CODE_OF = {
    RankOwner.COMPUTE: CodeOf.COMPUTE,
    RankOwner.COPY: CodeOf.COMPUTE,
    RankOwner.COMMUNICATION: CodeOf.COMMUNICATION,
}

#: Longer names of ops are cut.
_MOST_LETTERS = 200


class Places(msgspec.Struct, frozen=True, eq=False):
    """Where in the traces an owner's time lies, and in the user's own code, if stacks tell."""

    _job: Job

    def longest(
        self, rank: int, step: int, owner: RankOwner, what: str, apart_from: Sequence[tuple[int, int]] = ()
    ) -> Evidence:
        """The longest piece of an owner in one step of one rank (indices), else that step's whole window, which is not
        said to be idle.

        Pieces that overlap a span (start, end) in `apart_from` are passed over, if there are others.
        """
        pieces = self._job.digests[rank].pieces
        own_step = self._job.step_index[rank, step]
        rows = np.flatnonzero((pieces.step == own_step) & (pieces.owner == owner))
        spans = np.array(apart_from, np.int64).reshape(-1, 2)
        apart = Intervals.union(spans[:, 0], spans[:, 1]).measure(pieces.start_ns[rows], pieces.end_ns[rows]) == 0
        rows = rows[apart] if apart.any() else rows
        if not len(rows):
            name = step_owner(owner)
            none = f"The whole step: it has no stretch of {OWNERS[name].title} on this rank."
            return self.window(rank, step, none if name in IDLE else what)
        row = rows[(pieces.end_ns[rows] - pieces.start_ns[rows]).argmax()]
        return self._evidence(rank, step, int(pieces.start_ns[row]), int(pieces.end_ns[row]), owner, what)

    def window(self, rank: int, step: int, what: str) -> Evidence:
        """A rank's whole window of a step (indices)."""
        start = int(self._job.budget.start_ns[rank, step])
        return self._evidence(rank, step, start, start + int(self._job.budget.window_ns[rank, step]), None, what)

    def of_most(self, values: NDArray[Any], what: str, owner: RankOwner | None = None) -> Evidence:
        """Where the largest of the values (R, S) is: the longest piece of an owner there, or the whole step."""
        rank, step = divmod(int(values.argmax()), values.shape[1])
        return self.window(rank, step, what) if owner is None else self.longest(rank, step, owner, what)

    def longest_spans(
        self, ranks: Ints, start_ns: Ints, end_ns: Ints, what: str, instead: tuple[RankOwner, str] | None = None
    ) -> tuple[Evidence, ...]:
        """The longest span of kernels of each of the ranks; each rank has one in each step (R, S).

        Where it lies in no step: the longest piece of `instead` (its owner, what is said of it) in the span's step, or
        that whole step.
        """
        longest = []
        for rank in ranks.tolist():
            step = int((end_ns[rank] - start_ns[rank]).argmax())
            start, end = int(start_ns[rank, step]), int(end_ns[rank, step])
            span = self.between(rank, start, end, RankOwner.COMPUTE, what)
            longest.append(span or (self.longest(rank, step, *instead) if instead else self.window(rank, step, what)))
        return tuple(longest)

    def between(
        self, rank: int, start_ns: int, end_ns: int, owner: RankOwner, what: str, function: str = ""
    ) -> Evidence | None:
        """The part of a stretch that lies in the step of a rank (index) that has most of it; None if none has any.

        Collectives may run before the window of the step that launched them. `function` is the user's own one around
        it, if that is known already.
        """
        starts = self._job.budget.start_ns[rank]
        start = np.maximum(starts, start_ns)
        end = np.minimum(starts + self._job.budget.window_ns[rank], end_ns)
        step = int((end - start).argmax())
        if end[step] <= start[step]:
            return None
        return self._evidence(rank, step, int(start[step]), int(end[step]), owner, what, function)

    def _evidence(
        self,
        rank: int,
        step: int,
        start_ns: int,
        end_ns: int,
        owner: RankOwner | None,
        what: str,
        function: str = "",
    ) -> Evidence:
        if owner is not None and not function:
            function = self._function(rank, start_ns, end_ns, owner)
        if names.is_module(function):
            what = f"{what.removesuffix('.')}, in module {names.module_name(function)}."
        source = names.source(function)
        before, after, kernel = self._around(rank, step, start_ns, owner)
        if kernel:
            what = f"{what.removesuffix('.')}, before the launch of {kernel_names.short(kernel)}."
        return Evidence(
            int(self._job.ranks[rank]),
            int(self._job.steps[step]),
            start_ns,
            end_ns,
            what,
            Source(*source) if source else None,
            _shown(before),
            _shown(after),
        )

    def _around(self, rank: int, step: int, start_ns: int, owner: RankOwner | None) -> tuple[str, str, str]:
        """The last op before a gap outside any op, the first op after it, and the next kernel that is launched.

        Each is "" where it is not known.
        """
        digest = self._job.digests[rank]
        gaps = digest.gap_ops
        rows = np.flatnonzero((gaps.step == self._job.step_index[rank, step]) & (gaps.start_ns == start_ns))
        if owner is not RankOwner.HOST or not len(rows):
            return "", "", ""
        before, after, kernel = (int(column[rows[0]]) for column in (gaps.before, gaps.after, gaps.kernel))
        return digest.strings[before], digest.strings[after], digest.strings[kernel]

    def _function(self, rank: int, start_ns: int, end_ns: int, owner: RankOwner) -> str:
        """The user's own function that has most of a window of an owner's time, as stacks name it; "" if none has."""
        digest = self._job.digests[rank]
        code = digest.code
        of = _CODE_OF.get(owner, CodeOf.HOST) if digest.has_device else CodeOf.HOST
        overlap = np.minimum(code.end_ns, end_ns) - np.maximum(code.start_ns, start_ns)
        rows = np.flatnonzero((code.of == of) & (overlap > 0))
        if not len(rows):
            return ""
        total = np.bincount(code.function[rows], weights=overlap[rows])
        most = int(total.argmax())
        return digest.strings[most] if 2 * total[most] >= end_ns - start_ns else ""


def _shown(name: str) -> str:
    """A name from a trace as a sentence and JSON can hold it."""
    return name[:_MOST_LETTERS].encode(errors="replace").decode()


@fact
def _places(facts: Facts) -> Places:
    return Places(facts.job)
