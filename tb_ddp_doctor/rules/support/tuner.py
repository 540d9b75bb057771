"""What NCCL's tuner chose, by its log or the trace, and what of it makes large messages slow."""

from __future__ import annotations

from tb_ddp_doctor.facts.traffic import Traffic
from tb_ddp_doctor.findings import NcclChoice, Network

#: From this size on Simple has more bandwidth than LL on every link that nccl-tests were run on: LL sends a flag with
#: every 4 bytes, and its tuner leaves it at some 64 to 256 KB. A ring of many ranks sends pieces, and has a latency for
#: each rank: from this size for each of them on.
_LARGE_FOR_LL, _LARGE_FOR_LL_OF_A_RANK = 1 << 20, 1 << 17
#: From this size on a collective fills all channels: each has pieces of some 512 KB.
_LARGE_FOR_CHANNELS = 16 << 20
#: A choice of fewer channels than this share is said to be few.
_FEW = 0.5
#: What a switch adds up needs fewer channels.
_IN_SWITCH = ("NVLS", "NVLS tree", "CollNet direct", "CollNet chain")


def choice(seen: Network | None, traffic: Traffic) -> str:
    """What NCCL's tuner chose for some collectives, a sentence and a space, and one for each thing of it that makes
    messages of this size slow; "" where neither says.
    """
    own = [each for each in seen.choices if each.kind == traffic.kind] if seen else []
    own = [each for each in own if each.group == traffic.group] or own
    exact = [each for each in own if (traffic.bytes == each.bytes).any()]
    if seen is None or not own:
        return ""
    most = max(exact or own, key=lambda each: each.bytes * each.times)
    # Groups over several nodes may have fewer channels than one within a node.
    built = max(seen.channels, *(each.channels for each in seen.choices if each.group == most.group))
    channels = f", {most.channels} of {built} channels" if most.channels and built else ""
    return (
        f"For {traffic.kind} NCCL chose {most.algorithm}, {most.protocol}{channels}. "
        f"{_slow(seen, most, built, traffic.size)}"
    )


def _slow(seen: Network, chosen: NcclChoice, built: int, ranks: int) -> str:
    """What of a choice makes a message of its size slow, among so many ranks and with so many channels."""
    said = ""
    if chosen.protocol == "LL" and chosen.bytes >= max(_LARGE_FOR_LL, _LARGE_FOR_LL_OF_A_RANK * ranks):
        said += (
            "LL sends a flag with every 4 bytes, so at most half of a link's bandwidth is data: for messages of this "
            f"size Simple is faster{_set(seen, 'NCCL_PROTO')}. "
        )
    is_few = 0 < chosen.channels <= _FEW * built and chosen.algorithm not in _IN_SWITCH
    if is_few and chosen.bytes >= _LARGE_FOR_CHANNELS:
        said += (
            f"Messages of this size fill all {built} channels: with {chosen.channels}, fewer of the GPU's "
            f"blocks and links carry them{_set(seen, 'NCCL_MAX_NCHANNELS', 'NCCL_MAX_CTAS')}. "
        )
    return said


def _set(seen: Network, *names: str) -> str:
    """Which setting of the job's makes NCCL choose so; "" without one."""
    own = [f"{name}={seen.settings[name]}" for name in names if name in seen.settings]
    return f"; {' and '.join(own)} is set: unset it" if own else ""
