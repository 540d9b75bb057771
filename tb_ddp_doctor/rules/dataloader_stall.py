"""See `DataloaderStall`."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import CpuTime, RankOwner
from tb_ddp_doctor.evidence.model import RankEvidence
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.host import Loaders
from tb_ddp_doctor.job.model import Budget
from tb_ddp_doctor.planning.fact import Plans
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import activity, certainty, part
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold
from tb_ddp_doctor.rules.support.most_ranks import most_ranks
from tb_ddp_doctor.rules.support.rank_evidence import of_loading
from tb_ddp_doctor.rules.support.slowness import median_rank, median_rank_index, shared
from tb_ddp_doctor.trace.model import Ints

#: Where the median rank waits for its batches for less than this share of what loading costs, it waits for other ranks
#: that do.
_PART = 0.5


class DataloaderStall(Rule):
    """The GPU is idle, waiting for the DataLoader.

    What:
        GPU idle while the CPU is inside the DataLoader's `__next__`, on most ranks or all. Where some ranks do not
        wait, the finding names those that do.
    Why:
        If a batch is not ready when the GPU is, each step takes longer by the remaining loading time.
    Evidence:
        The longest such wait on each of the ranks that wait most. The annotation names the kind of loader: one that
        loads in the training process itself (`single_process`), or one with worker processes. There are too few workers
        (`too_few_workers`) where every step waits, or every few steps: the prefetched batches are used up, all workers
        are busy, and workers of the same speed finish together. Where waits are rare or irregular, single batches are
        late (`slow_workers`).
    Fix:
        Worker processes; more of them; for single late batches, more prefetching and samples that take equally long.
    Limits:
        Loading that is hidden behind GPU work costs nothing and is not reported. A loader that does not use torch's
        DataLoader is not annotated: it shows as host-stall. The trace does not show what workers do: a few steps
        cannot distinguish a single late batch from too few workers.
    """

    id = "dataloader-stall"
    subject = "Waiting for the DataLoader"
    of_every_program = True
    looks_again = True
    refines = ("slow-step", "launch-bound")

    min_share: float = threshold(
        0.01, "of the step", "Less than this, on the median rank, is the time to hand over a batch."
    )

    handing_over: float = threshold(
        2.0, "ms", "A batch that a worker has ready takes 0.03 to 1.7 ms to hand over; more workers do not help."
    )
    min_hidden: float = threshold(
        0.03,
        "of the step",
        "Where ranks wait for each other and not for their loaders: from this cost on it is a finding.",
    )
    min_regular: float = threshold(
        0.5, "of the waiting", "Waits this equal come in every step; jitter of 20 % gives less equal ones."
    )
    max_apart: float = threshold(
        8.0, "steps", "With too few workers, late batches come every N steps for N workers: rarely further apart."
    )

    def check(
        self,
        *,
        frame: Frame,
        budget: Budget,
        whatif: WhatIf,
        loaders: Loaders,
        rank_evidence: tuple[RankEvidence, ...],
        places: Places,
        plans: Plans,
    ) -> Result:
        least = self.min_share * frame.step_ns
        most = most_ranks(whatif, frame, CpuTime.INPUT)
        change = most.change if most else shared(whatif, frame, CpuTime.INPUT)
        waits, handed = self._waits(budget.of("input"), bool(most), change, whatif, frame, loaders)
        mean = waits.mean(axis=1)
        median, loading = float(median_rank(mean)), float(loaders.loading_ns.mean())
        if median < least:
            if float(mean.max()) >= least:
                return Clear(
                    f"Only some ranks wait for their loader; the median rank waits {wording.ms(median)} a step."
                )
            return Clear(f"Loading takes {wording.ms(loading)} a step and is hidden behind GPU work.")
        if handed:
            return Clear(f"No step waits for its batch: handing over batches takes {wording.ms(median)} a step.")
        seen = int((median_rank(waits) > least).sum())
        level, basis = certainty.confidence(frame, whatif.cost_ns(change), seen)
        affected = np.flatnonzero(most.ranks if most else mean >= least)
        cause, kind = self._cause(loaders, affected)
        typical = median_rank_index(waits)
        worst = affected[np.argsort(-mean[affected], kind="stable")][:3].tolist()
        idle = activity.idle(frame, "is in the DataLoader's __next__")
        return Fault(
            change=change,
            ranks=frame.rank_numbers(affected),
            cause=cause,
            confidence=level,
            title=f"{_who(frame, affected if most else None)} wait for the DataLoader "
            f"{part.mean(waits[typical], frame.window_ns[typical])} (median rank).",
            why=f"{kind}: loading takes {wording.ms(loading)} a step{_hidden(frame, loading - float(waits.mean()))}."
            f"{of_loading(worst[0], rank_evidence)} {basis}",
            fix=_fix(cause, frame.has_device, plans),
            evidence=tuple(places.longest(rank, int(waits[rank].argmax()), RankOwner.INPUT, idle) for rank in worst),
        )

    def _waits(
        self, waits_ns: Ints, on_most: bool, change: Change, whatif: WhatIf, frame: Frame, loaders: Loaders
    ) -> tuple[Ints, bool]:
        """How long each rank waits for its batches in each step, (R, S), and whether workers had these ready.

        `waits_ns` is how long devices idle for it. What loading takes counts in its place where most ranks wait, or
        wait for each other: while one waits for its batch, the other ranks wait for it, and their own loading idles
        no device.
        """
        if on_most:
            return loaders.loading_ns, False
        handed = self._are_handed(waits_ns, loaders)
        is_little = float(median_rank(waits_ns.mean(axis=1))) < self._least_wait(whatif, frame, change)
        if (handed or is_little) and self._hides(whatif, frame, loaders):
            return loaders.loading_ns, self._are_handed(loaders.loading_ns, loaders)
        return waits_ns, handed

    def _least_wait(self, whatif: WhatIf, frame: Frame, change: Change) -> float:
        """How long the median rank waits for its own batches where these are what the fix saves, ns a step."""
        return max(self.min_share * frame.step_ns, _PART * whatif.cost_ns(change))

    def _are_handed(self, times_ns: Ints, loaders: Loaders) -> bool:
        """Whether times of shape (R, S) are those of batches that workers have ready."""
        return loaders.kind == "workers" and float(median_rank(times_ns.max(axis=1))) < self.handing_over * 1e6

    def _hides(self, whatif: WhatIf, frame: Frame, loaders: Loaders) -> bool:
        """Whether loading that idles no device costs the job something all the same: more than handing batches over."""
        least = self.min_hidden * frame.step_ns
        if loaders.kind == "workers":
            least = max(least, self.handing_over * 1e6)
        return whatif.plays and whatif.cost_ns(shared(whatif, frame, CpuTime.INPUT)) >= least

    def _cause(self, loaders: Loaders, affected: Ints) -> tuple[str, str]:
        """The cause, and how the sentence on the loader begins."""
        if loaders.kind == "single_process":
            return "single_process", "It loads in the training process itself (num_workers=0)"
        too_few = "It has worker processes, but too few: "
        loading = loaders.loading_ns[affected]
        worst = loading[loading.sum(axis=1).argmax()]
        if np.sort(worst)[(len(worst) - 1) // 4] * len(worst) >= self.min_regular * worst.sum():
            return "too_few_workers", f"{too_few}every step waits for its batch"
        late = np.flatnonzero(worst > worst.mean())
        longest, others = wording.ms(int(worst.max())), wording.ms(float(np.delete(worst, late).mean()))
        apart = np.diff(late)
        widest = max(int(apart.max(initial=0)), int(late[0]), len(worst) - 1 - int(late[-1]))
        if widest <= min(self.max_apart, _UNEVEN * float(np.median(apart)) if len(apart) else np.inf):
            doubt = "" if len(apart) else " (in so few steps a single late batch looks the same)"
            return "too_few_workers", (
                f"{too_few}{wording.steps_seen(len(late), len(worst))} {_verb(late)} up to {longest} for the batch, "
                "the "
                f"other steps {others}, as when workers of the same speed finish together{doubt}"
            )
        return "slow_workers", (
            f"It has worker processes, but single batches are late: {wording.steps_seen(len(late), len(worst))} "
            f"{_verb(late)} up to {longest}, the other steps {others}"
        )


#: Late batches that are this many times as far apart as median come unevenly.
_UNEVEN = 2


def _who(frame: Frame, ranks: Ints | None) -> str:
    """What waits: these ranks (indices), or all."""
    if ranks is not None:
        return wording.capital(wording.ranks(frame.rank_numbers(ranks)))
    return "The GPUs" if frame.has_device else "The ranks"


def _hidden(frame: Frame, hidden_ns: float) -> str:
    """How much of loading costs nothing; "" for none."""
    beside = "GPU work" if frame.has_device else "other work"
    return f", of which {wording.ms(hidden_ns)} are hidden behind {beside}" if hidden_ns > 0 else ""


def _verb(late: Ints) -> str:
    return "waits" if len(late) == 1 else "wait"


def _fix(cause: str, has_device: bool, plans: Plans) -> str:
    workers, ahead = _WORKERS[cause]
    code = _LOADER.format(workers=workers, ahead=ahead, pinning=_PINNING if has_device else "")
    copies = _COPIES if cause == "single_process" and has_device else ""
    said = plans.said(plans.fewest_workers())
    return f"{_ADVICE[cause, has_device]}{said}\n\n{code}{copies}"


#: num_workers and prefetch_factor.
_WORKERS = {
    "single_process": ("4,            # more until the stall is gone; at most the cores per rank", 4),
    "too_few_workers": ("8,            # twice today's; at most the cores per rank", 4),
    "slow_workers": ("8,            # at most the cores per rank", 8),
}


_LATE = (
    "Find what makes single batches late: storage that stalls (copy the data to local disks, read larger files), "
    "samples that take much longer than the rest (decode and resize beforehand), or workers that restart in "
    "each epoch (persistent_workers). Prefetch more batches, so that no step waits for a late one."
)

_ADVICE = {
    ("single_process", True): "Load in worker processes, so that the next batches are prepared while the GPU computes; "
    "pin their memory, so that copies can overlap too.",
    ("too_few_workers", True): "Use more workers if there are cores for them; otherwise make samples cheaper: decode "
    "and resize beforehand, cache, move augmentation to the GPU, read larger files from faster storage.",
    ("slow_workers", True): _LATE,
    ("single_process", False): "Load in worker processes, so that the next batches are prepared while the ranks "
    "compute. Workers need cores of their own: lower OMP_NUM_THREADS if the ranks use all of them.",
    ("too_few_workers", False): "Use more workers if there are cores for them beside those of the ranks; otherwise "
    "make samples cheaper: decode and resize beforehand, cache, read larger files from faster storage.",
    ("slow_workers", False): _LATE,
}

_LOADER = """\
loader = DataLoader(
    dataset,
    batch_size=batch_size,
    sampler=sampler,
    num_workers={workers}
    persistent_workers=True,
    prefetch_factor={ahead},{pinning}
)"""

_PINNING = "\n    pin_memory=True,"

_COPIES = """
for batch in loader:
    batch = batch.to(device, non_blocking=True)"""
