"""Numbers and ranks in words, one way for all rules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from tb_ddp_doctor.findings import Confidence, Network
from tb_ddp_doctor.rules.inputs.frame import Frame
from tb_ddp_doctor.trace import names

_ADDRESS = re.compile(r" object at 0x[0-9a-f]+")
_TEMPLATE = re.compile(r"[<(]")
_KERNEL_LETTERS = 60
#: Lists longer than this are cut.
_LISTED = 6


def ms(ns: float) -> str:
    """A time: "124 ms" from 100 ms on, "12.4 ms" from 1 ms, "0.12 ms" below."""
    value = ns / 1e6
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 1 else 2
    return f"{value:.{digits}f} ms"


def us(ns: float) -> str:
    """A short time: "12 us" from 10 us on, "1.2 us" below; from 1 ms on as `ms` has it."""
    value = ns / 1e3
    return ms(ns) if abs(value) >= 1000 else f"{value:.{0 if abs(value) >= 10 else 1}f} us"


def percent(share: float) -> str:
    """A share of one: "67 %", "3.2 %" below ten."""
    return f"{share * 100:.{0 if share >= 0.1 else 1}f} %"


def listing(items: Sequence[object]) -> str:
    """Items as in "1 and 2", "1, 2 and 3" or "1, 2, 3, 4, 5, 6 and 12 more"."""
    words = [str(item) for item in items]
    if len(words) > _LISTED + 1:
        return f"{', '.join(words[:_LISTED])} and {len(words) - _LISTED} more"
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def ranks(numbers: Sequence[int]) -> str:
    """Ranks as in "rank 1" or "ranks 1 and 2"."""
    return f"rank{'s' if len(numbers) > 1 else ''} {listing(numbers)}"


def who(accused: Sequence[int], frame: Frame) -> str:
    """Ranks (indices), whole nodes by their names: "rank 1", "all 8 ranks of node3 and rank 97"."""
    whole = whole_nodes(accused, frame)
    left = sorted(int(frame.ranks[rank]) for rank in accused if frame.nodes[rank] not in whole)
    return listing(
        [*(f"all {count} ranks of {node}" for node, count in whole.items()), *([ranks(left)] if left else [])]
    )


def whole_nodes(accused: Sequence[int], frame: Frame) -> dict[str, int]:
    """Nodes of several ranks all of which are accused (indices), and their ranks' number; none if there is no other."""
    size = Counter(frame.nodes)
    hit = Counter(frame.nodes[rank] for rank in accused)
    return {node: count for node, count in hit.items() if node and 1 < count == size[node] < len(frame.ranks)}


def kernel(name: str) -> str:
    """A kernel's name without its template's and call's arguments, and not longer than a line takes."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    short = _TEMPLATE.split(plain, maxsplit=1)[0].strip() or name
    return short if len(short) <= _KERNEL_LETTERS else f"{short[:_KERNEL_LETTERS]}..."


def steps(numbers: Sequence[int]) -> str:
    """Steps as in "step 4" or "steps 4 and 5"."""
    return f"step{'s' if len(numbers) > 1 else ''} {listing(numbers)}"


def steps_seen(seen: int, of: int) -> str:
    """A count as in "3 of 3 steps"."""
    return f"{seen} of {of} step{'s' if of != 1 else ''}"


def capital(text: str) -> str:
    """The text with its first letter large, the others as they are."""
    return text[:1].upper() + text[1:]


def function(name: str) -> str:
    """A Python function as torch spells it, "src/train.py(41): step": "step (src/train.py:41)"."""
    found = names.source(name)
    return f"{found[2]} ({found[0]}:{found[1]})" if found else _ADDRESS.sub("", name)


def idle(frame: Frame, doing: str) -> str:
    """What to see where nothing is computed, while the host does something: "is in ..."."""
    return f"Device idle while the host {doing}." if frame.has_device else f"The host {doing}."


def gigabytes(size: float) -> str:
    """A size, GB = 1e9 bytes: "4.3 GB", and "530 MB" below one."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def gigabytes_per_second(rate: float) -> str:
    """A rate in bytes per second, GB = 1e9 bytes."""
    return f"{rate / 1e9:.1f} GB/s"


def network(seen: Network | None) -> str:
    """What NCCL's logs say of its links, a sentence and a space; "" without logs."""
    if seen is None or not seen.transports:
        return ""
    over = f" over {listing(seen.interfaces)}" if seen.interfaces else ""
    channels = f", in {seen.channels} channels" if seen.channels else ""
    if not uses_sockets(seen):
        return f"By its log, NCCL uses {listing(list(seen.transports))}{over}{channels}. "
    if seen.settings.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        return f"By its log, NCCL uses sockets{over}{channels}, since NCCL_IB_DISABLE is set. "
    lost = f": it could not use {listing(seen.unavailable)}" if seen.unavailable else ""
    return f"By its log, NCCL fell back to sockets{over}{channels}{lost}. "


def uses_sockets(seen: Network | None) -> bool:
    """Whether NCCL moves data between nodes through the kernel's TCP, the slowest way that it has."""
    return seen is not None and "NET/Socket" in seen.transports


def confidence(
    frame: Frame,
    cost_ns: float,
    seen: int,
    accused: Sequence[int] = (),
    *,
    on_host: bool = False,
    of_transfer: bool = False,
) -> tuple[Confidence, str]:
    """How sure a finding is, and the sentence that says why.

    `seen` is in how many steps the fault shows; `accused` are rank indices (all if empty). Each of these takes one
    level away: fewer than three steps; clocks that agree no better than a third of the cost; for faults of the host,
    recording that may itself be a quarter of the cost; and for faults of transfer, ranks without a trace.
    """
    doubts = []
    if not frame.has_steps:
        doubts.append("the trace has no ProfilerSteps")
    elif len(frame.steps) < 3:
        doubts.append("few steps were traced")
    if frame.residual_ns > cost_ns / 3:
        doubts.append("the cost is not far above what the clocks leave open")
    recording = float((frame.recording_ns[list(accused)] if len(accused) else frame.recording_ns).max())
    if on_host and recording > cost_ns / 4:
        doubts.append(f"recording alone slows the host by about {ms(recording)} a step")
    if of_transfer and frame.missing_ranks:
        doubts.append("waiting for ranks without a trace is known only as far as transfers tell")
    level: Confidence = ("high", "medium", "low")[min(len(doubts), 2)]
    basis = f"Seen in {steps_seen(seen, len(frame.steps))}"
    if frame.residual_ns:
        basis += f", clocks agree to {ms(frame.residual_ns)}"
    doubt = f"; but {listing(doubts)}" if doubts else ""
    return level, f"{basis}{doubt}."
