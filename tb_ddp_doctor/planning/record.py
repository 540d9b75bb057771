"""A job's record as a plan needs it: steps ready to be played, gradients, and the times of messages by size.

R = played ranks, which are some of the job's ranks; S = steps of the job.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.facts import Facts, MissingFactError
from tb_ddp_doctor.facts.arrivals import traffic
from tb_ddp_doctor.facts.traffic import Traffic
from tb_ddp_doctor.facts.without_faults import whatif
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.planning.costs.interference import Slowdown, slowdown
from tb_ddp_doctor.planning.costs.messages import Messages, messages
from tb_ddp_doctor.planning.edits.false_waits import without_false_waits
from tb_ddp_doctor.planning.edits.other_buckets import SentPasses, rebucketed
from tb_ddp_doctor.planning.edits.recorded_rows import recorded_rows
from tb_ddp_doctor.planning.gradients import SendingPass, SentGradients, sent_gradients
from tb_ddp_doctor.planning.refusal import CannotPlanError
from tb_ddp_doctor.planning.steps import PlayedSteps
from tb_ddp_doctor.replay.model import GUEST, Family
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.trace.model import Ints

#: At most this many ranks are played: half of them those that others wait for most, half spread over all ranks.
_MOST_RANKS = 64


class PlanRecord:
    """One job's record. Creating it raises CannotPlanError if the job's steps cannot be played."""

    def __init__(self, facts: Facts) -> None:
        self.facts, self.job = facts, facts.job
        self.whatif: WhatIf = facts.get(whatif)
        if self.whatif.replay is None:
            raise CannotPlanError(self.whatif.no_replay)
        #: Indices of the ranks that are played, ascending.
        self.ranks = _played(self.job)
        self._frame = self.whatif.replay.schedule.frame
        self.tracks = recorded_rows(self.whatif.replay, self.ranks)
        with suppress(CannotPlanError):
            self.tracks = without_false_waits(self.tracks, self.sent)
        self.steps = PlayedSteps(self.tracks)
        self._messages: dict[Family, Messages | None] = {}
        self._rebucketed: dict[bytes, PlayedSteps] = {}

    @cached_property
    def sends_gradients(self) -> NDArray[np.bool_]:
        """Flags the job's calls of collectives that send gradients, shape (N,)."""
        return self.job.calls.of_gradients & (self.job.calls.column("step") >= 0)

    @property
    def families(self) -> tuple[Family, ...]:
        """The families of the job's collectives."""
        return self._frame.families

    @cached_property
    def slowdown(self) -> Slowdown:
        """How much longer kernels take beside communication."""
        return slowdown(self.job.digests)

    @cached_property
    def gradients(self) -> SentGradients:
        """The gradients that DDP's buckets send. Raises CannotPlanError."""
        return sent_gradients(self.job)

    @cached_property
    def messages(self) -> Messages:
        """How long AllReduces of gradients take by size. Raises CannotPlanError."""
        of_gradients = self.messages_of(Family("all_reduce", self.gradients.group_size, of_gradients=True))
        if of_gradients is None:
            raise CannotPlanError("No AllReduce of gradients was matched between ranks, so its transfer is not known.")
        return of_gradients

    @cached_property
    def traffic(self) -> tuple[Traffic, ...]:
        """The matched collectives of each kind and group. Raises CannotPlanError if there are none."""
        try:
            return self.facts.get(traffic)
        except MissingFactError as error:
            raise CannotPlanError(str(error)) from error

    def messages_of(self, family: Family) -> Messages | None:
        """How long collectives of a family take by size; None if none with known size was matched between ranks.

        Where the trace does not say how many ranks take part, all collectives of that kind count.
        """
        if family not in self._messages:
            of_family = [
                one
                for one in self.traffic
                if one.kind == family.kind and family.group_size in (one.size, -1) and one.has_bytes
            ]
            self._messages[family] = (
                messages(
                    family.kind,
                    max(one.size for one in of_family),
                    np.concatenate([one.bytes for one in of_family]),
                    np.maximum(np.concatenate([one.transfer_ns for one in of_family]), 1),
                    self.job.calibration,
                )
                if of_family
                else None
            )
        return self._messages[family]

    def with_buckets(self, lasts: Ints, taking: Messages) -> PlayedSteps:
        """The steps with other buckets, given the last gradient of each. Raises CannotPlanError."""
        key = lasts.tobytes() + repr((taking.alpha_ns, taking.beta_ns)).encode()
        if key not in self._rebucketed:
            self._rebucketed[key] = PlayedSteps(rebucketed(self.tracks, self.sent, lasts, taking), self.steps)
        return self._rebucketed[key]

    @cached_property
    def sent(self) -> SentPasses:
        """The backward passes of the played ranks whose gradients DDP's buckets send. Raises CannotPlanError."""
        place = np.full(len(self.job.ranks), -1)
        place[self.ranks] = np.arange(len(self.ranks))
        passes = [one for one in self.gradients.passes if place[one.rank] >= 0]
        if len({len(one.collectives) for one in passes}) > 1:
            raise CannotPlanError("Ranks or steps send their gradients in different numbers of buckets.")
        return SentPasses(
            rank=place[[one.rank for one in passes]],
            ready_ns=np.stack([self._common(one, "ready_ns") for one in passes]),
            done_ns=np.stack([self._common(one, "done_ns") for one in passes]),
            launching_ns=np.stack([_launching(self.job, one) for one in passes]),
            parts=np.array(
                [[self.part_of[int(place[one.rank]), row] for row in one.collectives.tolist()] for one in passes],
                np.int64,
            ),
            recorded=self.gradients.recorded,
            bytes=self.gradients.bytes,
        )

    @cached_property
    def part_of(self) -> dict[tuple[int, int], int]:
        """The part of each collective of the played ranks, by index of the rank and row in its `Collectives`."""
        parts = self.tracks.part_table
        of_calls = np.flatnonzero(parts.like[:-1] != GUEST)
        rows = zip(parts.rank[of_calls].tolist(), parts.row[of_calls].tolist(), strict=True)
        return dict(zip(rows, of_calls.tolist(), strict=True))

    def _common(self, one: SendingPass, name: str) -> Ints:
        """A column of times of a pass's gradients, on the common clock, ns."""
        own: Ints = getattr(self.job.digests[one.rank].gradients, name)[one.gradients]
        return self.common(one.rank, own)

    def common(self, rank: int, own_ns: Ints) -> Ints:
        """Times of a rank's own clock on the common clock, ns; `rank` is its index among all ranks."""
        return own_ns - self.job.clock.correction(np.full(len(own_ns), rank), own_ns)


def _launching(job: Job, one: SendingPass) -> Ints:
    """How long the host takes to launch an AllReduce with each gradient of a pass, ns.

    For gradients with which it launched none, the rank's median.
    """
    all_of_rank = job.digests[one.rank].gradients.launching_ns
    median = int(np.median(all_of_rank[all_of_rank > 0])) if all_of_rank.any() else 0
    mine = all_of_rank[one.gradients]
    return np.where(mine > 0, mine, median)


def _played(job: Job) -> Ints:
    """Indices of the ranks to play, ascending."""
    ranks = len(job.ranks)
    if ranks <= _MOST_RANKS:
        return np.arange(ranks)
    often = np.bincount(job.waiting.last, minlength=ranks)
    last = np.argsort(-often, kind="stable")[: _MOST_RANKS // 2]
    spread = np.linspace(0, ranks - 1, _MOST_RANKS // 2).astype(np.int64)
    return np.unique(np.concatenate((last, spread)))
