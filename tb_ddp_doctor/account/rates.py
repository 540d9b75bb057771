"""The step, findings and opportunities in the user's units: tokens and samples a second, and money a day."""

from __future__ import annotations

from collections.abc import Sequence

from tb_ddp_doctor.facts.compute import Utilization
from tb_ddp_doctor.findings import Finding, RateGain, Rates, Workload
from tb_ddp_doctor.job.model import Job

_HOURS = 24


def rates(job: Job, findings: Sequence[Finding], utilization: Utilization | None) -> Rates | None:
    """The step in the units of the job's workload; None where that says nothing. `utilization` is None if unknown."""
    workload = job.workload
    energy = _energy_kwh(job)
    if (workload == Workload() and energy is None) or not job.step_ns:
        return None
    seconds = job.step_ns / 1e9
    money = None if workload.gpu_hour is None else job.world_size * _HOURS * workload.gpu_hour
    peak = utilization.peak if utilization else None

    def share(flops: float | None) -> float | None:
        return None if flops is None or not peak else flops / seconds / peak

    counted = float(utilization.model_flops.mean()) if utilization else None
    executed = float(utilization.flops.mean()) if utilization else None
    own = None if workload.model_flops_per_step is None else workload.model_flops_per_step / job.world_size
    # What is computed again is known from the trace alone.
    again = own + (executed - counted) if own and executed is not None and counted is not None else None
    return Rates(
        workload=workload,
        tokens_per_second=_rate(workload.tokens_per_step, job, seconds),
        samples_per_second=_rate(workload.samples_per_step, job, seconds),
        money_per_day=money,
        mfu=share(own),
        hfu=share(again),
        counted_mfu=share(counted),
        counted_hfu=share(executed),
        gains=tuple(_gain(one, job, seconds, money, energy) for one in findings if one.cost_ms > 0),
        energy_kwh_per_day=energy,
    )


def _rate(per_step: float | None, job: Job, seconds: float) -> float | None:
    """How much a GPU does in a second, such as tokens, given how much the job does in a step; None if unknown."""
    return None if per_step is None else per_step / job.world_size / seconds


def _energy_kwh(job: Job) -> float | None:
    """The energy of all GPUs in a day, kWh, at the highest power seen on each; None if that of some GPU is unknown."""
    known = [evidence.gpu for rank in job.ranks.tolist() if (evidence := job.rank_evidence.get(rank))]
    watts = [gpu.power_w for gpu in known if gpu is not None and gpu.power_w is not None]
    if not watts or len(watts) < len(job.ranks):
        return None
    return sum(watts) / len(watts) * job.world_size * _HOURS / 1e3


def _gain(one: Finding, job: Job, seconds: float, money: float | None, energy: float | None) -> RateGain:
    remaining = max(seconds - one.cost_ms / 1e3, 0.0)

    def more(per_step: float | None) -> float | None:
        now, then = _rate(per_step, job, seconds), _rate(per_step, job, remaining) if remaining else None
        return None if now is None or then is None else then - now

    return RateGain(
        finding=one.id,
        tokens_per_second=more(job.workload.tokens_per_step),
        samples_per_second=more(job.workload.samples_per_step),
        money_per_day=None if money is None else money * (one.cost_ms / 1e3) / seconds,
        energy_kwh_per_day=None if energy is None else energy * (one.cost_ms / 1e3) / seconds,
    )
