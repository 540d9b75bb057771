"""See `MissingStraggler`."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import record_again, wording
from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.facts.arrivals import Absent
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.findings import Setting
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.rules.support import limits, part
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold


class MissingStraggler(Rule):
    """A rank without a trace is the straggler.

    What:
        Collectives of groups in which some ranks have no trace, and which take much longer than comparable ones
        although all ranks with a trace have arrived.
    Why:
        The slowest rank sets the step time of the whole job. If it was not traced, straggler wait looks like slow
        communication.
    Evidence:
        The longest such wait of the rank that waits most, after the last rank with a trace has arrived. Wait is what a
        collective takes beyond its transfer, which is estimated from collectives of the same kind and group: a transfer
        takes no longer than a larger one, and per byte no longer than a smaller one.
    Fix:
        Trace the missing ranks too, or copy their files here.
    Limits:
        Which of the missing ranks it is, and why, only their traces show. If most collectives of a group wait, there
        are no faster ones to compare with, and nothing is reported. A network that stalls now and then looks the same.
    """

    id = "missing-straggler"
    subject = "A rank without a trace"
    of_every_program = True

    min_share: float = threshold(*limits.MISSING_STRAGGLER)
    min_steps: float = threshold(0.5, "of the steps", "Waits seen in under half of the steps are treated as noise.")

    def check(self, *, frame: Frame, absent: Absent, places: Places) -> Result:
        if not absent.ranks:
            return Clear("All ranks have a trace.")
        waits = absent.wait_ns.min(axis=0)
        mean = float(waits.mean())
        if mean < self.min_share * frame.step_ns:
            return Clear(
                f"Straggler wait for ranks without a trace is {wording.ms(mean)} a step, as estimated from transfers."
            )
        waited = part.mean(waits, frame.window_ns[absent.wait_ns.argmin(axis=0), np.arange(len(waits))])
        late = waits > self.min_share * frame.step_ns
        seen = int(late.sum())
        if seen < self.min_steps * len(frame.steps):
            return Clear(
                f"Straggler wait for ranks without a trace is seen in {wording.steps_seen(seen, len(frame.steps))} "
                "only."
            )
        missing = (
            f"rank {absent.ranks[0]}, which has no usable trace"
            if len(absent.ranks) == 1
            else f"some of the {frame.missing_ranks} ranks that have no usable trace"
        )
        place = places.between(
            absent.waiter,
            absent.start_ns,
            absent.end_ns,
            RankOwner.COMMUNICATION,
            f"Straggler wait in {absent.kind or 'a collective'} after all ranks with a trace have arrived.",
        )
        return Fault(
            change=Change(absent=True),
            steps=tuple(int(step) for step in frame.steps[late]),
            confidence="medium" if seen == len(frame.steps) else "low",
            title=f"{_who(frame)} {waited} for {missing}.",
            why=f"In {seen} of {len(frame.steps)} steps collectives take much longer than comparable ones although all "
            "ranks with a trace have arrived: a rank without a trace is late.",
            fix=_fix(frame.setting),
            evidence=(place,) if place else (),
        )


def _who(frame: Frame) -> str:
    return "All ranks with a trace wait" if len(frame.ranks) > 1 else f"Rank {frame.ranks[0]} waits"


def _fix(setting: Setting) -> str:
    if setting.has_doctor:
        return f"{_OF_DOCTOR}\n\n{record_again.command(setting)}"
    return _OF_NSYS if setting.recorder == "nsys" else _FIX


_OF_DOCTOR = """\
Look at the ranks that are missing here: capture all of them, into one log directory, and look for what their Doctors \
logged."""
_OF_NSYS = f"""\
Look at the ranks that are missing here: copy the exports of all nodes into this directory, or record every node.

{record_again.NSYS} {record_again.NSYS_OUTPUT}
{record_again.NSYS_EXPORT}"""
_FIX = """\
Look at the ranks that are missing here: copy their traces into this directory, or trace them too.

import socket
from torch.profiler import tensorboard_trace_handler as handler

# on every rank, into one directory that all share, or copied together
on_trace_ready = handler(logdir, worker_name=f"{socket.gethostname()}_{rank}", use_gzip=True)"""
