"""See `DataloaderStall`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.job.model import Budget
from tb_ddp_doctor.job.whatif import WhatIf
from tb_ddp_doctor.rules import words
from tb_ddp_doctor.rules.base import Clear, Fault, Result, Rule, threshold
from tb_ddp_doctor.rules.inputs import Frame, Loaders, Places
from tb_ddp_doctor.rules.slowness import usual_rank


@dataclass(frozen=True)
class DataloaderStall(Rule):
    """The device waits for the DataLoader.

    What:
        Device idle while the host is inside the DataLoader's `__next__`, on most ranks.
    Why:
        A batch that is not ready when the device is costs its remaining loading time, in every step.
    Evidence:
        The longest such wait on each of the ranks that wait most. The annotation names the kind of loader: one that
        loads in the training process itself, or one with worker processes that are too few or too slow.
    Fix:
        Worker processes, more of them, prefetching; then cheaper samples.
    Limits:
        Loading that hides behind the device costs nothing and stays silent. A loader that does not go through
        torch's DataLoader is not annotated: it shows as host-stall.
    """

    id: ClassVar[str] = "dataloader-stall"

    min_share: float = threshold(
        0.01, "of the step", "Less than this, on the usual rank, is a batch being handed over."
    )

    def check(self, *, frame: Frame, budget: Budget, whatif: WhatIf, loaders: Loaders, places: Places) -> Result:
        waits = budget.of("input")
        usual = float(usual_rank(waits.mean(axis=1)))
        loading = float(loaders.loading_ns.mean())
        if usual < self.min_share * frame.step_ns:
            if float(waits.mean(axis=1).max()) >= self.min_share * frame.step_ns:
                return Clear(f"Only some ranks wait for their loader; the usual one {words.ms(usual)} a step.")
            return Clear(f"Loading takes {words.ms(loading)} a step and hides behind the device.")
        cost = whatif.cost_ns(waits)
        seen = int((usual_rank(waits) > self.min_share * frame.step_ns).sum())
        level, basis = words.confidence(frame, cost, seen)
        affected = np.flatnonzero(waits.mean(axis=1) >= self.min_share * frame.step_ns)
        hidden = max(loading - float(waits.mean()), 0.0)
        who, beside = ("devices", "the device") if frame.has_device else ("ranks", "other work")
        single = loaders.kind == "single_process"
        kind = (
            "It loads in the training process itself (num_workers=0)"
            if single
            else "It has worker processes, but too few or too slow ones"
        )
        worst = affected[np.argsort(-waits[affected].mean(axis=1), kind="stable")][:3]
        return Fault(
            cost_ns=cost,
            ranks=frame.rank_numbers(affected),
            steps=frame.all_steps,
            cause="single_process" if single else "slow_workers",
            confidence=level,
            title=f"The {who} wait for the DataLoader {words.ms(usual)} of every {words.ms(frame.step_ns)}.",
            why=f"{kind}: loading takes {words.ms(loading)} a step, of which {words.ms(hidden)} hide behind "
            f"{beside}. {basis}",
            fix=_fix(single, frame.has_device),
            evidence=tuple(
                places.longest(
                    int(rank),
                    int(waits[rank].argmax()),
                    RankOwner.INPUT,
                    words.idle(frame, "is in the DataLoader's __next__"),
                )
                for rank in worst
            ),
        )


def _fix(single: bool, has_device: bool) -> str:
    workers = (
        "4,            # more until the stall is gone; at most the cores per rank"
        if single
        else "8,            # twice today's; at most the cores per rank"
    )
    code = _LOADER.format(workers=workers, pinning=_PINNING if has_device else "")
    copies = _COPIES if single and has_device else ""
    return f"{_ADVICE[single, has_device]}\n\n{code}{copies}"


_ADVICE = {
    (True, True): "Load in worker processes, so that the next batches are made while the device works; pin their "
    "memory, so that copies can overlap too.",
    (False, True): "Use more workers if there are cores for them; else make samples cheaper: decode and resize ahead "
    "of training, cache, move augmentation to the device, read larger files from faster storage.",
    (True, False): "Load in worker processes, so that the next batches are made while the ranks compute. Workers need "
    "cores of their own: lower OMP_NUM_THREADS if the ranks use all of them.",
    (False, False): "Use more workers if there are cores for them beside those of the ranks; else make samples "
    "cheaper: decode and resize ahead of training, cache, read larger files from faster storage.",
}

_LOADER = """\
loader = DataLoader(
    dataset,
    batch_size=batch_size,
    sampler=sampler,
    num_workers={workers}
    persistent_workers=True,
    prefetch_factor=4,{pinning}
)"""

_PINNING = "\n    pin_memory=True,"

_COPIES = """
for batch in loader:
    batch = batch.to(device, non_blocking=True)"""
