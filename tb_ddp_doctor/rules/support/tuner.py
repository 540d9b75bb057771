"""What NCCL's tuner chose, by its log."""

from __future__ import annotations

from tb_ddp_doctor.facts.traffic import Traffic
from tb_ddp_doctor.findings import Network


def choice(seen: Network | None, traffic: Traffic) -> str:
    """What NCCL's tuner chose for some collectives, a sentence and a space; "" where its log does not say."""
    own = [each for each in seen.choices if each.kind == traffic.kind] if seen else []
    own = [each for each in own if each.group == traffic.group] or own
    exact = [each for each in own if (traffic.bytes == each.bytes).any()]
    if seen is None or not own:
        return ""
    most = max(exact or own, key=lambda each: each.bytes * each.times)
    channels = f", {most.channels} of {seen.channels} channels" if most.channels and seen.channels else ""
    return f"For {traffic.kind} NCCL chose {most.algorithm}, {most.protocol}{channels}. "
