"""What each rank holds of a model's states, and sends a step, by how they are sharded.

Psi parameters, of which N ranks hold shards, take by stage of ZeRO (Rajbhandari et al., "ZeRO: Memory Optimizations
Toward Training Trillion Parameter Models", 2020, sections 5 and 7): stage 1 shards the optimizer's states, 2 gradients
too, 3 parameters too. An AllReduce sends 2 (N - 1)/N bytes for a byte, AllGather and ReduceScatter (N - 1)/N.
"""

from __future__ import annotations

import msgspec

from tb_ddp_doctor import record_again
from tb_ddp_doctor.facts.setting import setting
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.planning.costs.messages import Basis
from tb_ddp_doctor.planning.model import RankBytes
from tb_ddp_doctor.planning.shards.units import Units

#: Bytes of an optimizer's states for each byte of parameters, where the record does not tell: Adam's two moments.
_ADAM = 2.0


class States(msgspec.Struct, frozen=True):
    """Bytes of a model's states, not sharded, and how those of the optimizer are known."""

    parameters: float
    gradients: float
    optimizer: float
    basis: Basis
    rests_on: str


def states(job: Job, units: Units) -> States:
    """Of all parameters of a job."""
    elements = float(units.elements.sum())
    parameters, gradients = elements * units.parameter_bytes, elements * units.gradient_bytes
    seen = [digest.memory.states for digest in job.digests]
    told = [(one.optimizer / one.parameters, one.optimizer_name) for one in seen if one.optimizer >= 0 < one.parameters]
    if told:
        times, name = max(told)
        said = f"{name or 'the optimizer'} keeps {times:.1f} bytes for each byte of parameters (profile_memory=True)"
        return States(parameters, gradients, times * parameters, "measured", said)
    said = f"two moments for each parameter, as Adam's; {record_again.to_measure_memory(setting(job))}"
    return States(parameters, gradients, _ADAM * parameters, "assumed", said)


def of_rank(whole: States, strategy: str, ranks: int, shards: int, gathered: float) -> RankBytes:
    """What each of so many ranks holds and sends, where so many hold the shards of one copy.

    `gathered` are the bytes of the units that are gathered at a time, where parameters are sharded.
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


def offloaded(held: RankBytes) -> RankBytes:
    """The same with the shards on the CPU."""
    on_cpu = held.parameters + held.gradients + held.optimizer_states
    return msgspec.structs.replace(held, parameters=0.0, gradients=0.0, optimizer_states=0.0, on_cpu=on_cpu)


def _sent(whole: States, stage: int, ranks: int, shards: int) -> float:
    among, copies = (count - 1 for count in (shards, ranks // shards))
    once, between = among / shards, 2 * copies / (copies + 1)
    if stage == 0:
        return 2 * (ranks - 1) / ranks * whole.gradients
    gathers = {1: 1, 2: 1, 3: 2}[stage]
    scatters = 2 if stage == 1 else 1
    return once * (gathers * whole.parameters + scatters * whole.gradients) + between * whole.gradients / shards
