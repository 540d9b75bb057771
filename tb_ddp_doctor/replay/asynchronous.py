"""Finds engines of reinforcement learning that generate all the time, whoever trains meanwhile.

Asynchronous engines stop for the weights only, between two iterations: whoever trains waits for them no longer than one
takes, and they for nobody. Which of their iterations comes before a sync is chance, so that in a replay they neither
wait for trainers there nor trainers for them (`apart`). How many samples they have by then is not:

    rollout  [generate...............][sync][generate...............][sync]
    update   [train.............][    sync ]pause.....[train.............][    sync ]
                                                      |samples

Where trainers hardly pause, engines generate *ahead*: while training takes longer they answer more, so that they are as
busy as the trainers however long a round is. As recorded they would seem to take a whole round, which no faster
training would shorten. Engines that generate a fixed batch, and then wait, are none of these.

Pure: rows in, flags out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor.digest.track import LONG_AGO
from tb_ddp_doctor.job.together import Pause
from tb_ddp_doctor.replay.model import GUEST, Parts, Schedule
from tb_ddp_doctor.replay.rank_rows import RankRows
from tb_ddp_doctor.trace.model import Flags, Floats, Ints

#: A role that waits for others in a smaller share of its record hardly does.
_HARDLY = 0.05
#: An engine that pauses more often than so many times a round stalls in its iterations.
_OFTEN = 4

#: Of each role the pauses of its ranks that end together.
Groups = Sequence[Sequence[list[Pause]]]


def asynchronous(rows: Sequence[RankRows], role: Ints, groups: Groups, generates: Flags, rounds: int) -> Flags:
    """Which ranks generate all the time, shape (R,): all that `generates` flags, if none of them pauses for others in
    so many rounds, and no role waits in collectives with another one for long. `role` numbers the ranks' roles, (R,).
    """
    pause = {one.rank for its in groups for group in its for one in group if generates[one.rank]}
    if any(len(rows[rank].pauses) <= _OFTEN * rounds for rank in pause):
        return np.zeros_like(generates)
    hardly = _shares(rows, role, _waits_in_collectives(rows, role)) < _HARDLY
    return generates & bool(len(hardly) > 1 and hardly.all())


def ahead(rows: Sequence[RankRows], role: Ints, groups: Groups, engines: Flags) -> Flags:
    """Which of the `engines` that generate all the time do so ahead of the others, shape (R,): all, if no others pause
    for long.
    """
    pauses = np.zeros(len(rows), np.int64)
    for one in (one for its in groups for group in its for one in group if not engines[one.rank]):
        pauses[one.rank] += one.length_ns
    return engines & bool((_shares(rows, role, pauses) < _HARDLY).all())


def _shares(rows: Sequence[RankRows], role: Ints, waits_ns: Ints) -> Floats:
    """In which share of its record each role waits, given how long each rank does, shape (R,)."""
    lasts = np.array([its.until_ns - int(its.issued_ns[:1].sum()) for its in rows], np.int64)
    return np.array([waits_ns[role == one].sum() / max(lasts[role == one].sum(), 1) for one in np.unique(role)])


def awaited_engines(schedule: Schedule) -> Ints:
    """The ranks (indices) that generate all the time, each by itself, where others wait for their samples."""
    frame, parts = schedule.frame, schedule.parts
    engines = np.flatnonzero(frame.asynchronous & ~frame.ahead)
    calls = np.isin(parts.rank[:-1], engines) & (parts.like[:-1] != GUEST)
    meets = np.bincount(parts.collective[:-1][calls] + 1, minlength=2)[1:]
    return engines if (meets < 2).all() else engines[:0]


def apart(parts: Parts, chosen: Flags, arrival_ns: Ints) -> Parts:
    """The parts, of which the chosen ones, flags for each, are no longer parts of a collective with others: those begin
    as long after their last rank as recorded. Given when each part's rank arrives, ns.
    """
    collective, last = parts.collective.copy(), np.full(int(parts.collective.max(initial=-1)) + 1, LONG_AGO)
    np.maximum.at(last, collective[:-1][~chosen], arrival_ns[~chosen])
    is_with_chosen = np.zeros(len(last), np.bool_)
    is_with_chosen[collective[:-1][chosen]] = True
    others = np.append(~chosen & is_with_chosen[collective[:-1]], False)
    start_ns, absent_ns = parts.end_ns - parts.transfer_ns, parts.absent_ns.copy()
    absent_ns[others] = np.maximum(start_ns[others] - last[collective[others]], 0)
    alone = np.append(chosen, False)
    absent_ns[alone] = np.maximum(start_ns[alone] - arrival_ns[chosen], 0)
    collective[alone] = len(last) + np.arange(int(chosen.sum()))
    return replace(parts, collective=collective, absent_ns=absent_ns)


def _waits_in_collectives(rows: Sequence[RankRows], role: Ints) -> Ints:
    """How long each rank waits for the last one to arrive in collectives of several roles, shape (R,), ns."""
    rank = np.repeat(np.arange(len(rows)), [len(its.calls) for its in rows])
    arrival = np.concatenate([its.arrival_ns for its in rows])
    every, which = np.unique(np.concatenate([its.collective for its in rows]), return_inverse=True)
    last = np.full(len(every), np.iinfo(np.int64).min)
    least, most = np.full(len(every), role.max(initial=0)), np.full(len(every), -1)
    np.maximum.at(last, which, arrival)
    np.minimum.at(least, which, role[rank])
    np.maximum.at(most, which, role[rank])
    waits = np.zeros(len(rows), np.int64)
    np.add.at(waits, rank, np.where((least < most)[which], last[which] - arrival, 0))
    return waits
