"""Numbers and ranks in words, one way for all rules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.facts.traffic import Traffic
from tb_ddp_doctor.findings import Confidence, Network
from tb_ddp_doctor.trace import names

_ADDRESS = re.compile(r" object at 0x[0-9a-f]+")
_TEMPLATE = re.compile(r"[<(]")
_KERNEL_LETTERS = 60
#: Lists longer than this are cut.
_LISTED = 6
#: Runs of more numbers than this are a range.
_SHORT_RUN = 2
#: Of so many nodes the same place on each is no chance.
_FEWEST_NODES = 3
#: One level of confidence less.
LOWER: Mapping[Confidence, Confidence] = {"high": "medium", "medium": "low", "low": "low"}
#: A node's name whose last number is the node's own and whose earlier ones are its rack's.
_RACK = re.compile(r"(.*[0-9])[^0-9.]+[0-9]+(?:\..*)?")


def ms(ns: float) -> str:
    """A time: "124 ms" from 100 ms on, "12.4 ms" from 1 ms, "0.12 ms" below."""
    value = ns / 1e6
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 1 else 2
    return f"{value:.{digits}f} ms"


def us(ns: float) -> str:
    """A short time: "12 µs" from 10 µs on, "1.2 µs" below; from 1 ms on as `ms` has it."""
    value = ns / 1e3
    return ms(ns) if abs(value) >= 1000 else f"{value:.{0 if abs(value) >= 10 else 1}f} µs"


def percent(share: float) -> str:
    """A share of one: "67 %", "3.2 %" below ten."""
    return f"{share * 100:.{0 if share >= 0.1 else 1}f} %"


def listing(items: Sequence[object]) -> str:
    """Items as in "1 and 2", "1, 2 and 3" or "1, 2, 3, 4, 5, 6 and 12 more"; "" for none."""
    words = [str(item) for item in items]
    if len(words) > _LISTED + 1:
        return f"{', '.join(words[:_LISTED])} and {len(words) - _LISTED} more"
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def ranges(numbers: Sequence[int]) -> str:
    """Whole numbers, ascending, with runs of three and more as ranges: "1 and 2", "0, 2-4 and 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    items: list[object] = []
    for run in runs:
        items += [f"{run[0]}-{run[-1]}"] if len(run) > _SHORT_RUN else run
    return listing(items)


def ranks(numbers: Sequence[int]) -> str:
    """Ranks as in "rank 1", "ranks 1 and 2" or "ranks 616-623"."""
    return f"rank{'s' if len(numbers) > 1 else ''} {ranges(sorted(numbers))}"


def who(affected: Sequence[int], frame: Frame) -> str:
    """Ranks (indices), and the nodes, the rack or the rail that they are: "rank 1", "ranks 616-623 (all of node77)",
    "ranks 0-31 (all 4 nodes of rack2)", "ranks 3, 11 and 19 (local rank 3 of all 3 nodes)".

    A node is named only if all its traced ranks are affected: one that is well rules out what they share.
    """
    numbers = frame.rank_numbers(np.sort(np.asarray(affected, np.int64)))
    if (rail := _rail(affected, frame)) is not None:
        return f"{ranks(numbers)} (local rank {rail} of all {len(set(frame.nodes))} nodes)"
    whole = list(whole_nodes(affected, frame))
    inside = [int(frame.ranks[rank]) for rank in affected if frame.nodes[rank] in whole]
    left = [int(frame.ranks[rank]) for rank in affected if frame.nodes[rank] not in whole]
    parts = [f"{ranks(inside)} ({_of_nodes(whole, frame)})"] if inside else []
    if left:
        parts.append(ranks(left))
    return listing(parts)


def _of_nodes(whole: Sequence[str], frame: Frame) -> str:
    """Whole nodes by their names, or by the rack that they are."""
    racks = {node: rack(node) for node in frame.nodes}
    named = {racks[node] for node in whole}
    name = named.pop() if len(whole) > 1 and len(named) == 1 and len(set(racks.values())) > 1 else ""
    if name and len(whole) == sum(each == name for each in racks.values()):
        return f"all {len(whole)} nodes of {name}"
    return f"all of {listing(whole)}"


def rack(node: str) -> str:
    """The rack that a node's name tells, "rack2" of "rack2-node07" and "r12" of "r12n03"; "" if it tells none."""
    found = _RACK.fullmatch(node)
    return found[1] if found else ""


def _rail(affected: Sequence[int], frame: Frame) -> int | None:
    """The place on its node that each of these ranks (indices) has, if they are those of all nodes, at least three."""
    nodes = set(frame.nodes)
    if len(nodes) < _FEWEST_NODES or "" in nodes or len(affected) != len(nodes) or len(nodes) == len(frame.nodes):
        return None
    on_node: dict[str, list[int]] = {}
    for rank in np.argsort(frame.ranks, kind="stable").tolist():
        on_node.setdefault(frame.nodes[rank], []).append(rank)
    places = {on_node[frame.nodes[rank]].index(rank) for rank in affected}
    hit = {frame.nodes[rank] for rank in affected}
    return places.pop() if len(places) == 1 and hit == nodes else None


def whole_nodes(affected: Sequence[int], frame: Frame) -> dict[str, int]:
    """Nodes of several ranks all of which are affected (indices), with their number of ranks; none without another."""
    size = Counter(frame.nodes)
    return {node: count for node, count in most_of_nodes(affected, frame).items() if count == size[node]}


def most_of_nodes(affected: Sequence[int], frame: Frame) -> dict[str, int]:
    """Nodes of several ranks most of which are affected (indices), and how many are; none if there is no other node."""
    size = Counter(frame.nodes)
    hit = Counter(frame.nodes[rank] for rank in affected)
    return {
        node: count
        for node, count in hit.items()
        if node and count > 1 and size[node] < min(2 * count, len(frame.ranks))
    }


def kernel(name: str) -> str:
    """A kernel's name without its template's and call's arguments, and not longer than a line takes."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    short = _TEMPLATE.split(plain, maxsplit=1)[0].strip() or name
    return short if len(short) <= _KERNEL_LETTERS else f"{short[:_KERNEL_LETTERS]}..."


def steps(numbers: Sequence[int]) -> str:
    """Steps as in "step 4", "steps 4 and 5" or "steps 4-9"."""
    return f"step{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"


def steps_seen(seen: int, of: int) -> str:
    """A count as in "3 of 3 steps"."""
    return f"{seen} of {of} step{'s' if of != 1 else ''}"


def period(places: Sequence[int]) -> str:
    """How often something comes, given the places of its steps, a sentence after a space; "" if none shows."""
    apart = {later - earlier for earlier, later in pairwise(places)}
    if len(places) > 2 and len(apart) == 1 and apart != {1}:
        return f" It comes every {apart.pop()} steps."
    return " A longer capture would show how often it comes." if len(places) == 1 else ""


def capital(text: str) -> str:
    """The text with its first letter large, the others as they are."""
    return text[:1].upper() + text[1:]


def function(name: str) -> str:
    """A Python function as torch spells it, "src/train.py(41): step": "step (src/train.py:41)"."""
    found = names.source(name)
    return f"{found[2]} ({found[0]}:{found[1]})" if found else _ADDRESS.sub("", name)


def idle(frame: Frame, doing: str) -> str:
    """What to see where nothing is computed, while the host does something: "is in ..."."""
    return f"GPU idle while the CPU {doing}." if frame.has_device else f"The CPU {doing}."


def size(count: float) -> str:
    """A number of bytes, GB = 1e9 bytes: "4.3 GB", "530 MB", "1.6 MB" below ten, "12 kB", "8 bytes"."""
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    if count >= 1e6:
        return f"{count / 1e6:.{0 if count >= 1e7 else 1}f} MB"
    return f"{count / 1e3:.0f} kB" if count >= 1e3 else f"{count:.0f} bytes"


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


def uses_sockets(seen: Network | None) -> bool:
    """Whether NCCL moves data between nodes through the kernel's TCP, the slowest way that it has."""
    return seen is not None and "NET/Socket" in seen.transports


#: Where a rank of good luck stands among its peers, by how long its threads waited for a core.
_LUCKY = 0.25


def unlucky_ns(frame: Frame, affected: Sequence[int] = ()) -> float:
    """How much longer threads of a rank waited for a core in a step than those of a lucky peer, ns; never below 0.

    Of `affected` rank indices (all if empty) it is that of the rank that waited longest. On busy cores the threads of
    all ranks wait, so only the difference makes one rank slower than another. The peers are the ranks that are not
    affected, and the lucky one waits longer than a quarter of them: the further apart they are, the more is chance.
    Without peers all of the waiting counts.
    """
    waited = frame.core_wait_ns
    rows = np.array(affected, np.int64) if len(affected) else np.arange(len(waited))
    peers = np.setdiff1d(np.arange(len(waited)), rows)
    usual = float(np.quantile(waited[peers], _LUCKY, method="lower")) if len(peers) else 0.0
    return max(float(waited[rows].max()) - usual, 0.0)


def confidence(
    frame: Frame,
    cost_ns: float,
    seen: int,
    affected: Sequence[int] = (),
    *,
    on_host: bool = False,
    of_transfer: bool = False,
    is_counted: bool = False,
) -> tuple[Confidence, str]:
    """How sure a finding is, and the sentence that says why.

    `seen` is in how many steps the fault shows; `affected` are rank indices (all if empty). Each of these takes one
    level away: fewer than three steps; a clock skew of over a third of the cost (on one host, ends of collectives that
    are as far apart); for faults of the host, recording that may itself be a quarter of the cost; and for faults of
    transfer, ranks without a trace. Where the CPU computes, and for faults of the host, ranks whose threads waited for
    a core for a quarter of the cost longer than their peers (`unlucky_ns`) take one level away, and for half of it two:
    then that alone may be the fault. No waiting makes a fault that `is_counted`, such as more operators.
    """
    doubts = []
    if not frame.has_steps:
        doubts.append("the trace has no ProfilerSteps")
    elif len(frame.steps) < 3:
        doubts.append("few steps were traced")
    if frame.residual_ns > cost_ns / 3:
        doubts.append(f"the cost is not much above the {frame.setting.skew} (±{ms(frame.residual_ns)})")
    recording = float((frame.recording_ns[list(affected)] if len(affected) else frame.recording_ns).max())
    if on_host and recording > cost_ns / 4:
        doubts.append(f"recording alone slows the CPU by about {ms(recording)} a step")
    if of_transfer and frame.missing_ranks:
        doubts.append("straggler wait for ranks without a trace is only estimated from transfers")
    waited = unlucky_ns(frame, affected) if (on_host or not frame.has_device) and not is_counted else 0.0
    if waited > cost_ns / 4:
        longer = " longer than those of other ranks" if 0 < len(affected) < len(frame.ranks) else ""
        doubts.append(f"threads of a rank waited {ms(waited)} a step{longer} for a CPU core that others had")
    lost = len(doubts) + (waited > cost_ns / 2)
    level: Confidence = ("high", "medium", "low")[min(lost, 2)]
    basis = f"Seen in {steps_seen(seen, len(frame.steps))}"
    doubt = f"; but {listing(doubts)}" if doubts else ""
    return level, f"{basis}{doubt}."
