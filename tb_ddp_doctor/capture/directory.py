"""What a job's captures are in its log directory, and what the names mean.

    step_12000/rank5.pt.trace.json.gz.digest   what the diagnosis needs of a rank
    step_12000/rank5.pt.trace.json.gz          its trace, where it is kept
    step_12000/rank5.capture                   who captured it, which files, and what traces cannot show (Record)
    step_12000/verdict.json                    what rank 0's child, or that of another rank, says of all (Verdict)
    step_12000/verdict.claim                   whose child that is (Claim)
    step_12000/verdict.pending                 while rank 0's child may still write it
    ddp_doctor/events.out.tfevents.*           all verdicts as TensorBoard's time series (scalars.py)
    start_2/step_12000/ ...                    the same of the second start in the same log directory (starts.py)
    .capture/starts                            which starts there were
    .capture/requests, .capture/plans          how ranks agree on steps (requests.py)

All files are written whole or not at all. Only files that a record of the same job lists are ever deleted. What is read
here may be anybody's: links, pipes and large files are passed over.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tb_ddp_doctor.discover.names import CAPTURE_FOLDER, DIGEST_SUFFIX
from tb_ddp_doctor.evidence.model import RECORD_SUFFIX, CaptureRecord
from tb_ddp_doctor.known_type import known
from tb_ddp_doctor.storage.message import REFUSALS
from tb_ddp_doctor.storage.whole_file import written_whole

#: TensorBoard's run with the scalars: beside the job's own, whose event files it would end to read otherwise.
SCALARS_FOLDER = "ddp_doctor"
CONTROL_FOLDER = ".capture"
VERDICT_NAME = "verdict.json"
CLAIM_NAME = "verdict.claim"
#: In the scratch directory, beside the trace: the same for the job's `on_verdict`.
TOLD_NAME = "verdict"
#: Records and verdicts are small; anything larger is something else.
_MOST_BYTES = 64 << 20
#: Where the system has them.
_PLAIN = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
T = TypeVar("T")


class CaptureVerdict(msgspec.Struct, frozen=True):
    """What was diagnosed from the digests of a capture."""

    step: int
    #: For the job's log, and the diagnosis's own headline.
    line: str
    headline: str
    #: Ranks whose traces are kept with keep="accused": those that a finding names, and a typical one.
    traced: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    #: By name, in TensorBoard's units (ms).
    scalars: dict[str, float]
    #: What is named as slow, if anything: the rule, its ranks, and how sure that is.
    rule: str = ""
    ranks: tuple[int, ...] = ()
    confidence: str = ""
    #: The ranks that this capture and the 50 before it name more often than noise explains.
    agreed: tuple[int, ...] = ()
    #: When the first rank's first step began, s since the epoch; and the diagnosis as Markdown.
    began_s: float = 0.0
    text: str = ""


class Claim(msgspec.Struct, frozen=True):
    """Who diagnoses a capture."""

    rank: int


class CaptureFolder(msgspec.Struct, frozen=True):
    """The folder of one capture."""

    path: Path

    @classmethod
    def of(cls, logdir: Path, step: int) -> CaptureFolder:
        return cls(logdir / f"step_{step}")

    @property
    def step(self) -> int:
        named = CAPTURE_FOLDER.fullmatch(self.path.name)
        if named is None:
            raise ValueError(f"{self.path} is not the folder of a capture.")
        return int(named[1])

    @property
    def verdict(self) -> Path:
        return self.path / VERDICT_NAME

    @property
    def claim(self) -> Path:
        return self.path / CLAIM_NAME

    def trace(self, rank: int) -> Path:
        return self.path / f"rank{rank}.pt.trace.json.gz"

    def digest(self, rank: int) -> Path:
        return self.path / f"rank{rank}.pt.trace.json.gz{DIGEST_SUFFIX}"

    def record(self, rank: int) -> Path:
        return self.path / f"rank{rank}{RECORD_SUFFIX}"

    def records(self) -> dict[int, CaptureRecord]:
        """The records that are there and can be read, by rank. Raises OSError where the folder cannot be."""
        of_rank: dict[int, CaptureRecord] = {}
        if self.path.is_symlink():
            return of_rank
        for path in sorted(self.path.glob(f"rank*{RECORD_SUFFIX}")):
            record = read_json(path, CaptureRecord)
            if record is not None and path == self.record(record.rank):
                of_rank[record.rank] = record
        return of_rank


def capture_folders(logdir: Path) -> list[CaptureFolder]:
    """Those of all captures of one start, in the order of steps, without links."""
    folders = [CaptureFolder(path) for path in logdir.glob("step_*") if CAPTURE_FOLDER.fullmatch(path.name)]
    return sorted((folder for folder in folders if not folder.path.is_symlink()), key=lambda folder: folder.step)


def mark(path: Path) -> None:
    """Make an empty file where there is nothing, not even a link. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        path.open("xb").close()


def refuse_link(folder: Path) -> None:
    """Raise OSError where a folder of ours is a link, which somebody else may have put there."""
    if folder.is_symlink():
        raise OSError(f"{folder} is a link")


def write_json(path: Path, value: Any) -> None:
    """Write it whole or not at all. Raises OSError."""
    with written_whole(path) as file:
        file.write(msgspec.json.encode(value))


def read_json(path: Path, kind: type[T], most_bytes: int = _MOST_BYTES) -> T | None:
    """What `write_json` wrote; None where there is none, or something else."""
    try:
        # A pipe, opened otherwise, would wait for somebody to write.
        descriptor = os.open(path, os.O_RDONLY | _PLAIN)
        with open(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode) or about.st_size > most_bytes:
                return None
            return msgspec.json.decode(file.read(most_bytes), type=known(kind))
    except (OSError, *REFUSALS):
        return None
