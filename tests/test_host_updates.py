"""Optimizers on the CPU: gradients are copied to the host and updated there, and parameters are copied back."""

from __future__ import annotations

from pathlib import Path

import pytest
from traces import MS, job, outcome, ranks, write

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.digest.model import CpuTime
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.replay.change import Change
from tb_ddp_doctor.replay.whatif import WhatIf

#: The CPU waits for the copy of the gradients, and updates for 17 ms while the GPU idles.
OFFLOADED = """
    rank# step   |1
          host   [offload..][update.........][pinned][fwd][bwd][ar][sync.....]
          within  [sync..]   [adam.........]
          copy   [offload]                    [pinned]
          gpu                                         [fwd...][bwd....]
          nccl                                                         [ar...]
"""
#: The update takes 12 ms longer, and the next collective of the other ranks waits for that.
WAITING = OFFLOADED.replace("[ar...]", "[ar...............]").replace("[sync.....]", "[sync.................]")
SLOW = """
    rank# step   |1
          host   [offload..][update.....................][pinned][fwd][bwd][ar][sync.....]
          within  [sync..]   [adam.....................]
          copy   [offload]                                [pinned]
          gpu                                                     [fwd...][bwd....]
          nccl                                                                     [ar...]
"""


def unrecorded(drawing: str) -> str:
    """The same with an update in an extension, whose calls are not recorded."""
    return drawing.replace("[adam.........]", "").replace("[adam.....................]", "")


@pytest.mark.parametrize("drawn", [OFFLOADED, unrecorded(OFFLOADED)], ids=["op", "extension"])
def test_it_is_work_of_its_own_and_no_stall(drawn: str) -> None:
    whatif = WhatIf.of(job(ranks(drawn, drawn)))
    assert whatif.host_ns(CpuTime.UPDATE) == pytest.approx(17 * MS)
    assert not whatif.host_ns(CpuTime.OP_STALL).any()
    assert not whatif.host_ns(CpuTime.STALL).any()
    # A faultless job's CPU updates too, once the gradients are there.
    faultless = whatif.step_ns(Change(no_host=True))
    assert faultless[:, 1:] == pytest.approx(whatif.recorded_ns[:, 1:], abs=4 * MS)


@pytest.mark.parametrize("drawn", [OFFLOADED, unrecorded(OFFLOADED)], ids=["op", "extension"])
@pytest.mark.parametrize("rule", ["host-sync", "op-stall", "host-stall"])
def test_it_is_no_fault_of_equal_ranks(rule: str, drawn: str) -> None:
    assert outcome(rule, ranks(drawn, drawn)).status == "clear"


@pytest.mark.parametrize("op", [True, False])
def test_the_rank_that_updates_for_longer_is_the_straggler(op: bool, tmp_path: Path) -> None:
    waiting, slow = (drawn if op else unrecorded(drawn) for drawn in (WAITING, SLOW))
    diagnosis = engine.diagnose(
        next(iter(discover(write(tmp_path, ranks(waiting, slow, waiting))))), reading=engine.Reading(cache=Cache(None))
    ).diagnosis
    found = diagnosis.findings[0]
    assert (diagnosis.verdict, found.rule, found.ranks) == ("straggler", "straggler", (1,))
    assert found.cost_ms == pytest.approx(12, abs=1)
    assert "Its optimizer works 12.0 ms a step longer on the CPU than the median rank's." in found.why
    assert "the optimizer's work on the CPU" in " ".join(one.name for one in found.measurements)


@pytest.mark.parametrize(
    "drawn",
    [
        # The optimizer launches a kernel.
        OFFLOADED.replace("[fwd...]", "[adam..]"),
        # No gradient was copied to the host.
        OFFLOADED.replace("copy   [offload]", "copy            "),
    ],
    ids=["kernels", "no copy"],
)
def test_an_optimizer_of_the_gpu_has_no_such_work(drawn: str) -> None:
    whatif = WhatIf.of(job(ranks(drawn, drawn)))
    assert not whatif.host_ns(CpuTime.UPDATE).any()
    assert not whatif.host_ns(CpuTime.READ).any()
