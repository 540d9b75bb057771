"""Engines of asynchronous reinforcement learning with a slow GPU: they are as busy as the others, and answer less."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.facts.compute import KernelTable
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import naming, work_compared
from tb_ddp_doctor.rules.support.base import Fault
from tb_ddp_doctor.rules.support.straggler_fixes import fix
from tb_ddp_doctor.trace.model import Floats

#: The same kernels take so many times as long on a slow GPU: those of attention take longer for longer answers.
_SLOWER = 1.1


def slow_engines(frame: Frame, whatif: WhatIf, kernels: KernelTable, places: Places, least_ns: float) -> Fault | None:
    """The engines whose kernels take longer than on most others; None where that costs less than `least_ns` a step.

    Engines that share the requests have so many answers together as all of them generate in a time: one that needs
    r times as long has 1 / r of what another one has, so that N of them need 1 - mean(1 / r) less time without it.
    """
    engines = whatif.engines
    if len(engines) < 2:
        return None
    times = np.array([_times_as_long(rank, engines.tolist(), kernels) for rank in engines.tolist()])
    is_slow = times >= _SLOWER
    share = 1 - float(np.where(is_slow, 1 / times, 1.0).mean())
    device_ns = np.zeros(whatif.shape, np.int64)
    device_ns[engines] = np.rint(share * whatif.device_ns[engines])
    change = Change(device_ns=device_ns)
    if not is_slow.any() or 2 * is_slow.sum() > len(engines) or whatif.cost_ns(change) < least_ns:
        return None
    slow = engines[is_slow].tolist()
    ranks, step = frame.rank_numbers(engines[is_slow]), int(whatif.device_ns[slow[0]].argmax())
    has, their = ("has", "its") if len(slow) == 1 else ("have", "their")
    return Fault(
        change=change,
        ranks=ranks,
        cause="slow_device",
        confidence="medium",
        title=f"{wording.capital(naming.who(slow, frame))} {has} a slow GPU: the same kernels take "
        f"{wording.decimals(float(times.max()), 1)} times as long as on other engines.",
        why=f"Engines generate all the time, so {their} GPU is as busy as others, and has fewer answers in each round: "
        "those that train wait until all engines together have enough. What the fix saves is taken from all of them.",
        fix=fix("slow_device", ranks, frame),
        evidence=(places.window(slow[0], step, "A step of the slow engine."),),
    )


def _times_as_long(rank: int, engines: list[int], kernels: KernelTable) -> float:
    """How many times as long the kernels of an engine (index) take as on another one that launches a median number."""
    launches: Floats = kernels.launches()
    others = sorted((one for one in engines if one != rank), key=lambda one: float(launches[one]))
    return max(work_compared.slowdown(kernels.of(rank), kernels.of(others[len(others) // 2])), 1.0)
