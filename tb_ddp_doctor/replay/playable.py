"""Whether the recorded steps of a job can be replayed, and why they cannot."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import record_again, wording
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.setting import setting
from tb_ddp_doctor.replay.order import CircularWaitError
from tb_ddp_doctor.replay.replay import Replay
from tb_ddp_doctor.replay.schedule import schedule

#: The replay is used if the steps played without a change differ from the recorded ones by at most this share.
MOST_MISSED = 0.01


def replay_of(job: Job) -> Replay | str:
    """The replay of a job, or why there is none, in sentences: the traces lack what it needs, or the steps played
    without a change are not the recorded ones.
    """
    lacks = _lacks(job)
    if lacks:
        return f"The steps cannot be replayed: {lacks}"
    # Pauses of roles that are taken wrongly for waits do not give the recorded steps.
    replay = _played(job, tied=True)
    if isinstance(replay, str):
        replay = _played(job, tied=False)
    return f"The steps cannot be replayed: {replay}" if isinstance(replay, str) else replay


def _lacks(job: Job) -> str:
    """What the traces lack for a replay, the end of a sentence, and how to record it; "" where they lack nothing."""
    if not job.has_device:
        return "that needs the events of GPUs, and the traces have none."
    untracked = [index for index, digest in enumerate(job.digests) if not len(digest.track)]
    if not untracked:
        return ""
    unlaunched = [index for index in untracked if not job.digests[index].has_launches]
    if unlaunched:
        return f"{_traces(job, unlaunched)} no records of kernel launches. {record_again.launches(setting(job))}"
    return f"{_traces(job, untracked)} no operators that launch most of the kernels that compute."


def _traces(job: Job, lacking: list[int]) -> str:
    """The traces of some ranks (indices): "the traces have", "the traces of ranks 1 and 3 have"."""
    if len(lacking) == len(job.ranks):
        return "the traces have"
    ranks = wording.ranks(job.ranks[lacking].tolist())
    return f"the trace of {ranks} has" if len(lacking) == 1 else f"the traces of {ranks} have"


def _played(job: Job, *, tied: bool) -> Replay | str:
    """The replay with or without hand-overs between roles; why not, the end of a sentence, if it does not give the
    recorded steps.
    """
    try:
        replay = Replay(schedule(job, tied=tied))
    except CircularWaitError:
        return "ranks would wait for each other in a circle, so some collectives are matched wrongly."
    missed_ns = float(np.abs(replay.recorded_ns - job.budget.window_ns).mean())
    if missed_ns <= MOST_MISSED * job.step_ns:
        return replay
    missed = wording.percent(missed_ns / max(job.step_ns, 1.0))
    return f"played without a change, they differ from the recorded ones by {missed}."
