"""What is said of the files of a job's ranks once they are beside each other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from tb_ddp_doctor import wording
from tb_ddp_doctor.digest.model import RankDigest, Steps
from tb_ddp_doctor.digest.steps import FIRST_PART
from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.job.align import Aligned
from tb_ddp_doctor.job.clock import ONE_CLOCK_NS
from tb_ddp_doctor.job.completeness import Damages, whole_steps
from tb_ddp_doctor.trace.model import Ints

#: Records that are further apart than clocks are of other times, ns: processes of a node share a clock, and those of a
#: cluster's nodes are within the 5 minutes that Kerberos asks for. Traces without an epoch have times since anything,
#: up to those of the year 2001.
_APART_ON_A_NODE_NS, _APART_NS, _EPOCH_NS = 10**9, 300 * 10**9, 10**18


def left_out(
    usable: Mapping[int, RankDigest], kept: Mapping[int, RankDigest], damaged: Damages
) -> Iterator[FileWarning]:
    """What is said of ranks that are damaged, and of those without a step in common with the others."""
    for rank, digest in usable.items():
        if rank in damaged:
            reasons = "; ".join(damage.reason for damage in damaged[rank])
            whole = ", ".join(map(str, sorted(whole_steps(digest, damaged[rank]))))
            how = f"is damaged, and is used for steps {whole} only" if rank in kept else "is left out as damaged"
            yield FileWarning(digest.file, f"Rank {rank} {how}: {reasons}.")
        elif rank not in kept:
            yield FileWarning(digest.file, f"Rank {rank} is left out: it shares no step with most other ranks.")


def at_other_times(digests: Mapping[int, RankDigest], nodes: Mapping[int, str]) -> Iterator[FileWarning]:
    """What is said of ranks whose record lies at another time than those of most other ranks, of their node or of all.

    Ranks wait for each other in every step, so they are recorded at once, or in other runs of the job.
    """
    every = [rank for rank, digest in digests.items() if digest.steps.start_ns[0] > _EPOCH_NS]
    of_nodes = _of_nodes((nodes.get(rank, ""), rank) for rank in every)
    groups = [*((ranks, _APART_ON_A_NODE_NS, f" of {node}") for node, ranks in of_nodes), (every, _APART_NS, "")]
    said: set[int] = set()
    for ranks, apart_ns, where in groups:
        apart = _apart([digests[rank].steps for rank in ranks], ranks, apart_ns)
        for rank in (rank for rank in apart if rank not in said):
            said.add(rank)
            others = "the other rank" if len(ranks) == 2 else "most other ranks"
            yield FileWarning(
                digests[rank].file,
                f"Rank {rank} was recorded at another time than {others}{where}: the file may be of another run, or "
                "the clock is wrong. How ranks wait for each other is then not known.",
            )


def _of_nodes(of_ranks: Iterable[tuple[str, int]]) -> Iterator[tuple[str, list[int]]]:
    """The ranks of each node that is known, given each rank's."""
    of_node: defaultdict[str, list[int]] = defaultdict(list)
    for node, rank in of_ranks:
        of_node[node].append(rank)
    return ((node, ranks) for node, ranks in of_node.items() if node)


def _apart(steps: Sequence[Steps], ranks: Sequence[int], apart_ns: int) -> list[int]:
    """The ranks whose record is so far apart from those of most others."""
    begin = np.array([each.start_ns[0] for each in steps], np.int64) - apart_ns
    end = np.array([each.end_ns[-1] for each in steps], np.int64)
    # Of other ranks: those that end before this one begins, and those that begin after it ends.
    apart = np.searchsorted(np.sort(end), begin) + len(ranks) - np.searchsorted(np.sort(begin), end, "right")
    return [ranks[i] for i in np.flatnonzero(2 * apart > len(ranks) - 1).tolist()]


def other_clocks(aligned: Aligned) -> Iterator[FileWarning]:
    """What is said of ranks whose clock is another one than that of the other ranks of their node."""
    for node, mine in _of_nodes((node, index) for index, node in enumerate(aligned.nodes)):
        offset = aligned.clock.offset_ns[mine]
        # Most nodes have one clock, where nothing is to be compared rank by rank.
        for place, index in enumerate(mine if np.ptp(offset) > ONE_CLOCK_NS else ()):
            apart = float(offset[place] - np.median(np.delete(offset, place)))
            if abs(apart) > ONE_CLOCK_NS:
                others = "the other rank" if len(mine) == 2 else "the other ranks"
                yield FileWarning(
                    aligned.digests[index].file,
                    f"The clock of rank {list(aligned.ranks)[index]} is {wording.ms(abs(apart))} "
                    f"{'late' if apart > 0 else 'early'} beside that of {others} of {node}: its GPU's times may be as "
                    "far off beside its CPU's.",
                )


def begun_late(kept: Mapping[int, RankDigest], damaged: Damages, compared: Ints) -> Iterator[FileWarning]:
    """What is said of ranks for whose sake steps are not compared that most ranks have."""
    counts = Counter(step for digest in kept.values() for step in digest.steps.number.tolist())
    most = {step for step, ranks in counts.items() if 2 * ranks > len(kept)} - {FIRST_PART, *compared.tolist()}
    for rank, digest in kept.items():
        lacking = sorted(most.difference(digest.steps.number.tolist()))
        if lacking and rank not in damaged:
            steps = f"step {lacking[0]}" if len(lacking) == 1 else f"steps {', '.join(map(str, lacking))}"
            message = f"Rank {rank} has no {steps}, as most ranks have: what all ranks have is compared."
            yield FileWarning(digest.file, message)
