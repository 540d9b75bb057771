"""Computes how much of a model's states each rank stores and sends in a step, by how the states are sharded.

Psi parameters, of which N ranks hold shards, take by stage of ZeRO (Rajbhandari et al., "ZeRO: Memory Optimizations
Toward Training Trillion Parameter Models", 2020, sections 5 and 7): stage 1 shards the optimizer's states, 2 gradients
too, 3 parameters too. An AllReduce sends 2 (N - 1)/N bytes for a byte, AllGather and ReduceScatter (N - 1)/N.
"""

from __future__ import annotations

import msgspec

from tb_ddp_doctor import record_again, wording
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.setting import setting
from tb_ddp_doctor.planning.costs.messages import Basis
from tb_ddp_doctor.planning.model import RankBytes
from tb_ddp_doctor.planning.shards.units import Units

#: Assumed bytes of optimizer states for each byte of parameters, if the record does not show them: Adam's two moments.
_ADAM = 2.0


class States(msgspec.Struct, frozen=True):
    """Bytes of a model's states if they are not sharded."""

    parameters: float
    gradients: float
    optimizer: float
    #: How the bytes of the optimizer's states are known.
    basis: Basis
    #: The same in words, for users.
    rests_on: str


def states(job: Job, units: Units) -> States:
    """The states of a job's whole model."""
    elements = float(units.elements.sum())
    parameters, gradients = elements * units.parameter_bytes, elements * units.gradient_bytes
    seen = [digest.memory.states for digest in job.digests]
    known = [
        (one.optimizer / one.parameters, one.optimizer_name) for one in seen if one.optimizer >= 0 < one.parameters
    ]
    if known:
        times, name = max(known)
        said = (
            f"{name or 'the optimizer'} keeps {wording.decimals(times, 1)} bytes for each byte of parameters "
            "(profile_memory=True)"
        )
        return States(parameters, gradients, times * parameters, "measured", said)
    said = f"two moments for each parameter, as Adam's; {record_again.to_measure_memory(setting(job))}"
    return States(parameters, gradients, _ADAM * parameters, "assumed", said)


def of_rank(whole: States, strategy: str, ranks: int, shards: int, gathered: float) -> RankBytes:
    """What each of `ranks` ranks stores and sends if `shards` of them store one copy together.

    `gathered` is how many bytes of units are gathered at a time, if parameters are sharded.
    """
    stage = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "hsdp": 3}[strategy]
    parameters, gradients, optimizer = (
        whole_bytes / (shards if stage >= least else 1)
        for whole_bytes, least in ((whole.parameters, 3), (whole.gradients, 2), (whole.optimizer, 1))
    )
    return RankBytes(
        parameters=parameters,
        gradients=gradients,
        optimizer_states=optimizer,
        gathered=gathered if stage == 3 else 0.0,
        on_cpu=0.0,
        sent=_sent(whole, stage, ranks, shards),
    )


def offloaded(of_rank: RankBytes) -> RankBytes:
    """What a rank stores and sends if its shards are on the CPU."""
    on_cpu = of_rank.parameters + of_rank.gradients + of_rank.optimizer_states
    return msgspec.structs.replace(of_rank, parameters=0.0, gradients=0.0, optimizer_states=0.0, on_cpu=on_cpu)


def _sent(whole: States, stage: int, ranks: int, shards: int) -> float:
    """Bytes that a rank sends in a step, for a stage of ZeRO."""
    among, copies = (count - 1 for count in (shards, ranks // shards))
    once, between = among / shards, 2 * copies / (copies + 1)
    if stage == 0:
        return 2 * (ranks - 1) / ranks * whole.gradients
    gathers = {1: 1, 2: 1, 3: 2}[stage]
    scatters = 2 if stage == 1 else 1
    return once * (gathers * whole.parameters + scatters * whole.gradients) + between * whole.gradients / shards
