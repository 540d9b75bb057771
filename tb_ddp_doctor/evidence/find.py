"""What files beside the traces say of the ranks: the doctor's own records, nvidia-smi, DCGM, py-spy.

Taken are records (`rank5.capture`) in the folders of the traces, and the texts that `discover.recorders.nccl_logs`
finds there, in the run's folder and the one above. A text counts for a rank if it names the rank's process, or else
its node (in the text, the file's name or its folder) with as many GPUs as the node has ranks, which then have them in
order.

Everything in them is untrusted: no more than the beginning of each file is read, and what is kept is short.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import msgspec

from tb_ddp_doctor.discover.names import CAPTURE_FOLDER, START_FOLDER
from tb_ddp_doctor.evidence.model import RECORD_SUFFIX, CaptureRecord, RankEvidence, SeenGpu, SeenStack
from tb_ddp_doctor.evidence.texts import TEXTS
from tb_ddp_doctor.known_type import known
from tb_ddp_doctor.storage.message import REFUSALS
from tb_ddp_doctor.storage.time_limit import beginning

#: Of a text, and of a record, which has some hundred bytes and is read in TensorBoard's own process.
_MOST_BYTES, _MOST_OF_RECORD = 4 << 20, 1 << 16
_FIRST_LOOK = 1 << 12
_RECORD = re.compile(rf"rank(\d{{1,7}}){re.escape(RECORD_SUFFIX)}")


class Rank(msgspec.Struct, frozen=True):
    """What a file may name a rank by."""

    number: int
    #: "" where unknown.
    node: str
    pid: str


def find(folders: Iterable[Path], ranks: Sequence[Rank], texts: Sequence[Path]) -> dict[int, RankEvidence]:
    """What is known of the ranks of a run whose traces lie in `folders`, by rank number; `texts` may say something."""
    of_rank = dict(_records(dict.fromkeys(folders), {rank.number for rank in ranks}))
    seen = _Texts(ranks)
    for path in texts:
        seen.take(path)
    for number, more in seen.known():
        # What was measured while the rank was recorded is closer to it.
        known = of_rank.get(number, RankEvidence())
        of_rank[number] = msgspec.structs.replace(
            known, gpu=known.gpu or more.gpu, stack=more.stack, stack_source=more.stack_source
        )
    return of_rank


def _records(folders: Iterable[Path], ranks: AbstractSet[int]) -> Iterator[tuple[int, RankEvidence]]:
    for folder in folders:
        for number in sorted(_recorded(folder) & ranks):
            data = _beginning(folder / f"rank{number}{RECORD_SUFFIX}", _MOST_OF_RECORD)
            try:
                record = msgspec.json.decode(data, type=known(CaptureRecord))
            except REFUSALS:
                continue
            if record.rank == number:
                yield number, msgspec.structs.replace(record.evidence, logdir=_logdir_of(folder))


def _logdir_of(folder: Path) -> str:
    """The directory that a `Doctor` was given, of the folder that one of its captures lies in: `LOGDIR/step_N`, or
    `LOGDIR/start_2/step_N` of the job's second start. A folder that was renamed stands for itself.
    """
    logdir = Path(os.path.abspath(folder))
    for folders in (CAPTURE_FOLDER, START_FOLDER):
        if folders.fullmatch(logdir.name):
            logdir = logdir.parent
    return str(logdir)


def _recorded(folder: Path) -> AbstractSet[int]:
    """The ranks with a record in a folder."""
    try:
        names = os.listdir(folder)
    except OSError:
        return set()
    return {int(named[1]) for named in map(_RECORD.fullmatch, names) if named}


class _Texts:
    """What texts say of the ranks, together."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        self._by_pid: dict[str, list[Rank]] = defaultdict(list)
        self._by_node: dict[str, list[Rank]] = defaultdict(list)
        for rank in sorted(ranks, key=lambda rank: rank.number):
            self._by_pid[rank.pid].append(rank)
            self._by_node[rank.node].append(rank)
        self._found: dict[int, RankEvidence] = {}

    def known(self) -> Iterable[tuple[int, RankEvidence]]:
        return self._found.items()

    def take(self, path: Path) -> None:
        """Read a text, whatever it is."""
        head = _beginning(path, _FIRST_LOOK)
        kinds = [kind for kind in TEXTS if any(mark in head for mark in kind.MARKS)]
        text = _beginning(path, _MOST_BYTES).decode("utf-8", errors="replace") if kinds else ""
        node = self._node_of(path) if kinds else ""
        for kind in kinds:
            seen = list(kind.parse(text, path.name))
            gpus = [one for one in seen if isinstance(one, SeenGpu)]
            for stack in (one for one in seen if isinstance(one, SeenStack)):
                for rank in self._alone(stack.pid):
                    self._note(rank, RankEvidence(stack=stack.stack, stack_source=path.name))
            for gpu in gpus:
                for rank in self._whose(gpu, gpu.host or node, sum(one.host == gpu.host for one in gpus)):
                    self._note(rank, RankEvidence(gpu=gpu.state))

    def _alone(self, pid: str) -> list[Rank]:
        """The rank of a process; none where ranks of several nodes share its number."""
        ranks = self._by_pid.get(pid, [])
        return ranks if len(ranks) == 1 else []

    def _whose(self, gpu: SeenGpu, node: str, gpus: int) -> list[Rank]:
        """The ranks that run on a GPU of a node with so many GPUs."""
        on_it = [rank for pid in gpu.pids for rank in self._alone(pid)]
        ranks = self._by_node.get(node, []) if node else []
        if not on_it and gpus == len(ranks):
            on_it = [ranks[gpu.number]] if gpu.number < len(ranks) else []
        return on_it

    def _node_of(self, path: Path) -> str:
        """The node that a file's name or folder names, "" for none or several."""
        words = {path.parent.name, path.stem, *path.stem.replace("_", "-").split("-"), *path.stem.split("_")}
        named = [node for node in self._by_node if node and node in words]
        return named[0] if len(named) == 1 else ""

    def _note(self, rank: Rank, more: RankEvidence) -> None:
        known = self._found.get(rank.number, RankEvidence())
        if more.stack:
            known = msgspec.structs.replace(known, stack=more.stack, stack_source=more.stack_source)
        self._found[rank.number] = msgspec.structs.replace(known, gpu=more.gpu or known.gpu)


def _beginning(path: Path, most: int) -> bytes:
    """The beginning of a plain file; nothing of one that cannot be read."""
    try:
        return beginning(path, most)
    except OSError:
        return b""
