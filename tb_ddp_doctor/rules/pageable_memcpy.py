"""See `PageableMemcpy`."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import CopyWork, CpuTime, LaunchDelay, RankOwner
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.host import LateLaunches
from tb_ddp_doctor.facts.shortened_calls import ShortenedCalls
from tb_ddp_doctor.findings import Evidence
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf
from tb_ddp_doctor.rules.offload_copies import are_large
from tb_ddp_doctor.rules.support import blocking_calls, certainty, part
from tb_ddp_doctor.rules.support.base import Clear, Fault, NotApplicable, Result, Rule, threshold
from tb_ddp_doctor.trace.model import Ints
from tb_ddp_doctor.trace.names import HostMemory

#: Calls that hold the CPU for less of this share of the time that copies do are not named.
_MENTIONED = 0.05


class PageableMemcpy(Rule):
    """Copies between host and GPU use pageable memory.

    What:
        Copies between host and GPU whose host memory is pageable, while nothing else runs on the GPU.
    Why:
        The driver stages pageable memory through a small pinned buffer: slower, and the call blocks the CPU, so
        that nothing is launched meanwhile.
    Evidence:
        The longest such copy. The cost is the exposed time in excess of a pinned copy of the same bytes, at the
        rate of the pinned copies in the trace, or at the threshold's rate where there are none.
    Fix:
        pin_memory=True in the DataLoader, or a pinned buffer, together with non_blocking=True in the copy.
    Limits:
        ROCm's copies do not say which memory they use. Reading a scalar back (`.item()`) is pageable too, but costs
        a sync and not the copy.
    """

    id = "pageable-memcpy"
    subject = "Copying from pageable memory"
    of_every_program = True

    pinned_rate: float = threshold(20.0, "GB/s", "PCIe 4.0 x16 copies pinned memory at 20 to 26 GB/s.")
    min_measured: float = threshold(1.0, "MB", "Pinned copies smaller than this in a step do not show the link's rate.")
    min_cost: float = threshold(0.002, "of the step", "Below this it is not worth a line.")

    def check(
        self,
        *,
        frame: Frame,
        whatif: WhatIf,
        copies: CopyWork,
        shortened: ShortenedCalls,
        late_launches: LateLaunches,
        places: Places,
    ) -> Result:
        number = float(copies.pageable_copies.mean())
        if number == 0 and copies.unnamed_copies.any():
            return NotApplicable("The traces have copies, but not the kind of memory that they use (ROCm's do not).")
        if number == 0:
            return Clear("No copy between host and GPU uses pageable memory.")
        saved = np.maximum(copies.pageable_exposed_ns - self._pinned_ns(copies), 0)
        # What is kept on the GPU is not copied: offload-copies has it.
        saved = np.where(are_large(copies, frame.program), 0, saved)
        of_calls = shortened.of_copies(saved, copies.pageable_ns, HostMemory.PAGEABLE)
        change = whatif.without(CpuTime.COPY) | Change(device_ns=saved, of_calls=of_calls)
        cost = whatif.cost_ns(change)
        size = wording.size(float(copies.pageable_bytes.mean()))
        if cost < self.min_cost * frame.step_ns:
            return Clear(
                f"{wording.decimals(number, 0)} pageable copies of {size} in total a step cost almost nothing."
            )
        level, basis = certainty.confidence(frame, cost, int((whatif.at_slowest(saved) > 0).sum()))
        blocked = float(copies.pageable_blocked_ns.mean())
        calls = [call for call in late_launches.calls(LaunchDelay.COPY) if call.blocked_ns > _MENTIONED * blocked]
        # Of small copies only the wait for what was launched before takes time, and that is the CPU's.
        blocks_cpu = bool(calls) and 2 * float(copies.pageable_exposed_ns.mean()) < min(cost, blocked)
        lost = copies.pageable_blocked_ns if blocks_cpu else copies.pageable_exposed_ns
        affected = np.flatnonzero(lost.mean(axis=1) > 0.5 * lost.mean())
        what = f"{blocking_calls.count(number)} cop{'y' if number == 1 else 'ies'} a step"
        if blocks_cpu:
            does = "make the CPU wait for the GPU for"
            waits = "waits" if number == 1 else "wait"
            why = f"{what}, {size}, {waits} for all that was launched before: {blocking_calls.named(calls)}."
        else:
            does = "delay the GPU by"
            why = f"{what}: {size} at {_rate(copies)}, which block the CPU for {wording.ms(blocked)}."
        return Fault(
            change=change,
            ranks=frame.rank_numbers(affected),
            cause="pageable_memory",
            confidence=level,
            title=f"Copies from pageable memory {does} {part.mean(lost, frame.window_ns)}.",
            why=f"{why} {basis}",
            fix=_FIX if frame.trains else _OF_A_MODEL,
            evidence=blocking_calls.evidence(calls, places, _WAITS) if blocks_cpu else _exposed(lost, affected, places),
        )

    def _pinned_ns(self, copies: CopyWork) -> Ints:
        """Time that the pageable copies would take if pinned, shape (R, S)."""
        bytes_per_ns = self.pinned_rate
        large = copies.pinned_bytes >= self.min_measured * 1e6
        if large.any():
            measured = float(copies.pinned_bytes[large].sum() / max(int(copies.pinned_ns[large].sum()), 1))
            pageable = float(copies.pageable_bytes.sum() / max(int(copies.pageable_ns.sum()), 1))
            # Pinned memory is never slower: those copies are small, and do not show the link's rate.
            bytes_per_ns = measured if measured > pageable else bytes_per_ns
        return (copies.pageable_bytes / max(bytes_per_ns, 1e-9)).astype(np.int64)


#: What a copy's call does, where it is the CPU that loses time.
_WAITS = "The CPU waits in {call} in {op} until the GPU has done all that was launched before."


def _rate(copies: CopyWork) -> str:
    """How fast the copies from pageable memory are while nothing runs beside them."""
    return wording.gigabytes_per_second(
        float(copies.pageable_bytes.mean()) / max(float(copies.pageable_exposed_ns.mean()), 1.0) * 1e9
    )


def _exposed(exposed_ns: Ints, affected: Ints, places: Places) -> tuple[Evidence, ...]:
    """The longest exposed copy of each of the two ranks (indices) that lose most; `exposed_ns` of shape (R, S)."""
    worst = affected[np.argsort(-exposed_ns[affected].mean(axis=1), kind="stable")][:2]
    return tuple(
        places.longest(
            int(rank),
            int(exposed_ns[rank].argmax()),
            RankOwner.COPY,
            "Only a copy from pageable memory runs on the GPU; the CPU waits for it.",
        )
        for rank in worst
    )


_FIX = """\
Let the loader pin its batches, and copy them with non_blocking=True; both are needed.

loader = DataLoader(dataset, batch_size=batch_size, num_workers=4, pin_memory=True)
for batch in loader:
    batch = batch.to(device, non_blocking=True)"""

_OF_A_MODEL = """\
Write inputs to pinned memory, and copy them with non_blocking=True; both are needed. Two buffers in turn let the next \
input be written while this one is copied.

pinned = torch.empty(shape, dtype=dtype, pin_memory=True)  # once
pinned.copy_(inputs)
inputs = pinned.to(device, non_blocking=True)"""
