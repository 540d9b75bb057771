"""See `LargerBatch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import CpuTime, GpuTime
from tb_ddp_doctor.facts.arrivals import Sized
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.roofline import JobRoofline, JudgedRoofline, KernelRoof
from tb_ddp_doctor.findings import Evidence, Memory
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.support import certainty
from tb_ddp_doctor.rules.support.base import Clear, Fault, Result, Rule, threshold
from tb_ddp_doctor.rules.support.gemm_tiles import fit, gemm
from tb_ddp_doctor.rules.support.roofline import listed, longest, smaller
from tb_ddp_doctor.trace.program_names import Program


class _Larger(NamedTuple):
    """What a larger batch saves, and what is said of it."""

    #: The share of what comes once a step, and of each kernel's time, that it saves, 0 to 1.
    fewer: float
    spared: Mapping[KernelRoof, float]
    #: The larger batch, how a sentence on it begins; and what it computes as many of as now, "samples".
    batch: str
    same: str
    why: str
    fix: str
    remedy: str
    evidence: tuple[Evidence, ...]


class LargerBatch(Rule):
    """The batch is so small that much of a step does not depend on it.

    What:
        The part of a step that a larger batch does not lengthen: launches, the AllReduces of gradients, the optimizer,
        the start and end of each kernel, GEMMs with too few tiles for the GPU. On a server also GEMMs at the bandwidth
        of the memory: they read all weights for few tokens.
    Why:
        With twice the batch, half as many steps compute the same samples, and have that part half as often.
    Evidence:
        The longest GEMMs. The saving is that of the time for as many samples as a step has now, at the batch that the
        free memory allows.
    Fix:
        A larger batch; with gradient accumulation, fewer and larger micro-batches, which changes no result. On a
        server, more sequences at a time, or more tokens of each (speculative decoding).
    Limits:
        A larger batch of the whole job may need another learning rate, and may converge differently. How much memory
        is free is known where it was recorded (profile_memory=True); else twice the batch is supposed to fit. What
        grows with the batch is estimated: parts of kernels of fixed length are counted as `fixed` has it. Of a server
        it is supposed that more requests wait, and that their keys and values fit. Kernels of CUDA graphs have no
        shapes: record some iterations without graphs.
    """

    id = "larger-batch"
    subject = "The batch size"
    is_opportunity = True
    of_servers = True

    most: float = threshold(4.0, "times the batch", "Chosen: much larger batches often need other hyperparameters.")
    supposed: float = threshold(2.0, "times the batch", "Where the traces do not tell which memory is free.", least=1.0)
    least: float = threshold(1.25, "times the batch", "With less free memory a larger batch is not worth a try.")
    fixed: float = threshold(
        2.0, "µs of a kernel", "Filling and draining the GPU: the shortest kernels of the shared traces take 1 to 2 µs."
    )
    saved_least: float = threshold(0.5, "of the saving", "The lower end of the interval.")
    min_cost: float = threshold(
        0.03, "of the step", "A larger batch has a price, so it has to be worth more than a fix."
    )

    def check(
        self,
        *,
        frame: Frame,
        whatif: WhatIf,
        roofline: JudgedRoofline,
        memory: Memory | None,
        sized: Sized | None,
        places: Places,
    ) -> Result:
        if frame.program == Program.SERVING.value:
            return self._of_server(frame, whatif, roofline, places)
        fits = memory.largest_batch if memory else None
        times = min(self.supposed if fits is None else fits, self.most)
        if times < self.least:
            return Clear(
                f"The free memory allows {wording.figures(times, 2)} times the batch, which is not worth a try."
            )
        spared = self._spared(roofline, times)
        fewer = 1 - 1 / times
        gemms = [one for one in roofline.kernels if one.kind is GpuTime.GEMM]
        larger = _Larger(
            fewer,
            spared,
            batch=f"A batch {wording.figures(times, 2)} times as large",
            same="samples",
            why=f"{_room(fits, times)} {_reached(gemms, spared)}Launches, AllReduces of gradients and the optimizer "
            "come once a step, whatever its batch.",
            fix=_FIX,
            remedy="batch size",
            evidence=longest(sorted(gemms, key=lambda one: -one.above_ns)[:2], places)
            or (places.window(0, 0, "A whole step."),),
        )
        return self._result(larger, frame, whatif, roofline, sized)

    def _of_server(self, frame: Frame, whatif: WhatIf, roofline: JudgedRoofline, places: Places) -> Result:
        """What more sequences in an iteration save of the time for the same tokens."""
        weights = {one: share for one in roofline.kernels if (share := _of_weights(one)) is not None}
        if not weights:
            return Clear("No GEMM reads its weights at the bandwidth of the memory.")
        fewer, spared = 1 - 1 / self.supposed, self._spared(roofline, self.supposed)
        for one, share in weights.items():
            spared[one] = max(spared[one], _by_weights(one, share, self.supposed))
        kernels = sorted(weights, key=lambda one: -one.step_ns)
        larger = _Larger(
            fewer,
            spared,
            batch=f"{wording.figures(self.supposed, 2)} times as many sequences in an iteration",
            same="tokens",
            why=f"GEMMs take {wording.ms(sum(one.step_ns for one in kernels))} of an iteration at the bandwidth of the "
            f"memory, which reads their weights for few tokens: {listed(kernels)}. For more tokens they hardly take "
            "longer.",
            fix=_OF_SERVERS,
            remedy="concurrent sequences",
            evidence=longest(kernels[:2], places),
        )
        return self._result(larger, frame, whatif, roofline, None)

    def _result(
        self, larger: _Larger, frame: Frame, whatif: WhatIf, roofline: JudgedRoofline, sized: Sized | None
    ) -> Result:
        """The fault, where the larger batch saves enough."""
        change = _change(larger.fewer, larger.spared, frame, roofline, sized)
        cost = whatif.cost_ns(change)
        if cost < self.min_cost * frame.step_ns:
            return Clear(f"{larger.batch} would save {wording.ms(cost)} of the time for the same {larger.same}.")
        level, basis = certainty.confidence(frame, cost, len(frame.steps))
        most = {one: max(share, _most(one, larger.fewer)) for one, share in larger.spared.items()}
        return Fault(
            change=change,
            confidence=certainty.LOWER[level],
            title=f"{larger.batch} would shorten the time for the same {larger.same}.",
            why=f"{larger.why} {basis}",
            fix=larger.fix,
            evidence=larger.evidence,
            remedy=larger.remedy,
            between=(self.saved_least, _change(larger.fewer, most, frame, roofline, sized)),
        )

    def _spared(self, roofline: JudgedRoofline, times: float) -> dict[KernelRoof, float]:
        """The share of each kernel's time that a batch so many times as large saves of the same samples, 0 to 1."""
        spared = {}
        for one in roofline.kernels:
            if not one.step_ns:
                continue
            fixed = 1.0 if one.kind is GpuTime.OPTIMIZER else min(self.fixed * 1e3 * one.count / one.step_ns, 1.0)
            share = fixed * (1 - 1 / times)
            if one.kind is GpuTime.GEMM and one.limit != "memory":
                share = max(
                    share, min(_by_waves(one, roofline.roofs.multiprocessors, times), one.above_ns / one.step_ns)
                )
            spared[one] = share
        return spared


def _most(one: KernelRoof, fewer: float) -> float:
    """The share of a kernel's time that a larger batch saves at most, 0 to 1; `fewer` is that of the steps.

    No batch takes less time than a smaller one, and no GEMM less than its FLOPs do: its weights are read once for more
    samples. Of other kernels all above their roof is of fixed length at most.
    """
    if one.kind is GpuTime.GEMM and one.peak_flops:
        computes_ns = one.flops / one.peak_flops * 1e9 * one.count
        return min(fewer, max(1 - computes_ns / one.step_ns, 0.0))
    return fewer * one.above_ns / one.step_ns


def _of_weights(one: KernelRoof) -> float | None:
    """Which share of what a GEMM moves are its weights, 0 to 1; None where it is not limited by that, or not known."""
    sizes = gemm(one)
    if one.kind is not GpuTime.GEMM or one.limit != "memory" or one.fits_cache or sizes is None or sizes.batch > 1:
        return None
    read, written = (sizes.m * sizes.k, sizes.k * sizes.n), sizes.m * sizes.n
    return max(read) / (sum(read) + written)


def _by_weights(one: KernelRoof, weights: float, times: float) -> float:
    """The share of the time of a GEMM at the bandwidth that so many times the tokens save of the same tokens.

    Its weights, a share of what it moves, are read once whatever the tokens are; its FLOPs grow with these.
    """
    moves = weights / times + 1 - weights
    computes = one.flops / one.peak_flops * 1e9 * one.count / one.attainable_ns if one.peak_flops else 0.0
    return 1 - max(moves, min(computes, 1.0))


def _by_waves(one: KernelRoof, multiprocessors: int, times: float) -> float:
    """The share of a GEMM's time that more tiles save: those of a larger batch fill its waves better.

    A GEMM over all samples, as of a gradient of weights, has as many tiles as before.
    """
    sizes = gemm(one)
    if sizes is None or not multiprocessors or sizes.k > max(sizes.m, sizes.n):
        return 0.0
    tiles = fit(one.name, sizes, multiprocessors)
    if not tiles.count or tiles.waves == 1:
        return 0.0
    waves, then = -(-tiles.count // multiprocessors), np.ceil(tiles.count * times / multiprocessors)
    return max(1 - float(then) / (times * waves), 0.0)


def _change(
    share: float, spared: Mapping[KernelRoof, float], frame: Frame, roofline: JobRoofline, sized: Sized | None
) -> Change:
    """What as many samples as now need less: `share` of all that comes once a step, and parts of kernels."""
    hosts = {CpuTime.WORK: np.full(frame.window_ns.shape, share)}
    change = Change(hosts) | smaller(spared, roofline)
    if sized is not None:
        exposed = np.rint(sized.transfers.allreduce_exposed_ns * share).astype(np.int64)
        change |= Change(transfer_ns=exposed)
    return change


def _room(fits: float | None, times: float) -> str:
    """What memory allows, a sentence."""
    if fits is None:
        return "Which memory is free was not recorded (profile_memory=True): that it fits is supposed."
    supposed = "" if times == fits else f"; {wording.figures(times, 2)} are supposed"
    return f"The free memory allows {wording.figures(fits, 2)} times the batch{supposed}."


def _reached(gemms: Sequence[KernelRoof], spared: Mapping[KernelRoof, float]) -> str:
    """Which share of their attainable speed GEMMs reach now and then, a sentence; "" without GEMMs."""
    now = sum(one.step_ns for one in gemms)
    if not now:
        return ""
    attainable = sum(one.attainable_ns for one in gemms)
    then = sum(one.step_ns * (1 - spared.get(one, 0.0)) for one in gemms)
    return (
        f"GEMMs reach {wording.percent(attainable / now)} of their attainable speed, and would reach "
        f"{wording.percent(min(attainable / then, 1.0))}. "
    )


_OF_SERVERS = """\
Serve more sequences at a time: a higher limit, and more memory for keys and values. Or several tokens of each \
sequence for one read of the weights (speculative decoding), or fewer bytes to read (quantised weights).

vllm serve ... --max-num-seqs 512 --gpu-memory-utilization 0.95
python -m sglang.launch_server ... --max-running-requests 512 --mem-fraction-static 0.9 --speculative-algorithm EAGLE"""
_FIX = """\
Try a larger batch: with gradient accumulation, fewer and larger micro-batches of the same whole; else with the \
learning rate scaled to it, and a look at the loss.

loader = DataLoader(data, batch_size=2 * batch, num_workers=8, pin_memory=True)
for group in optimizer.param_groups:
    group["lr"] *= 2 ** 0.5  # linear for SGD, the square root for Adam; with warm-up"""
