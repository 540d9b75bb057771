"""Where the captures of each start of a job go, so that those of one log directory are never mixed.

    .capture/starts/1          the first start in this log directory (Listed): its captures are in LOGDIR/step_N
    .capture/starts/2          the second: its captures are in LOGDIR/start_2/step_N
    .capture/starts/2.rank5    rank 5 has joined it; only where ranks do not know for certain which start they are of
    .capture/starts/2.ended    it has ended by itself

All ranks of a start find the same number, whoever comes first: a number is given by making its file, which succeeds
once. No clock is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec

from tb_ddp_doctor.capture.directory import CONTROL_FOLDER, capture_folders, mark, read_json, write_json
from tb_ddp_doctor.capture.process import Start
from tb_ddp_doctor.discover.names import START_FOLDER

_NUMBER = re.compile(r"[1-9]\d{0,8}", re.ASCII)


class Listed(msgspec.Struct, frozen=True):
    """A start in a log directory."""

    start: Start
    #: Of its captures: the name that the launcher gives the job, or one that no other start has.
    job: str


class JoinedStart(msgspec.Struct, frozen=True):
    """A start in a log directory, and its number there."""

    logdir: Path
    number: int
    listed: Listed

    @property
    def folder(self) -> Path:
        """Where its captures are."""
        return folder_of(self.logdir, self.number)

    @property
    def has_ended(self) -> bool:
        return _ended(self.logdir, self.number).exists()

    def end(self) -> None:
        """Say that it has ended. Raises OSError."""
        mark(_ended(self.logdir, self.number))


def folder_of(logdir: Path, number: int) -> Path:
    """Where the captures of a start are."""
    return logdir if number == 1 else logdir / f"start_{number}"


def join(logdir: Path, start: Start, rank: int, after: int = 0) -> JoinedStart:
    """The number of a start in a log directory, above `after`, for the captures of one of its ranks. Raises OSError.

    Ranks that do not know for certain which start they are of join one that has their id and size and that none with
    their rank has joined. So the ranks of the next start with the same id join the next number.
    """
    for number in count(after + 1):
        listed = _listed_as(logdir, number, start)
        is_mine = (listed.start.id, listed.start.world_size) == (start.id, start.world_size)
        if is_mine and (start.is_unique or _joins(logdir, number, rank)):
            return JoinedStart(logdir, number, listed)
    raise AssertionError


def starts(logdir: Path) -> Iterator[JoinedStart]:
    """All starts in a log directory, the first one first."""
    try:
        numbers = sorted(int(name) for name in os.listdir(_file(logdir, 1).parent) if _NUMBER.fullmatch(name))
    except OSError:
        return
    for number in numbers:
        listed = read_json(_file(logdir, number), Listed)
        if listed is not None:
            yield JoinedStart(logdir, number, listed)


def start_folders(logdir: Path) -> list[tuple[int, Path]]:
    """The folders with captures of each start, by number, without links."""
    numbered = [
        (int(match[1]), path) for path in logdir.glob("start_*") if (match := START_FOLDER.fullmatch(path.name))
    ]
    return [(1, logdir), *sorted(one for one in numbered if not one[1].is_symlink())]


def _listed_as(logdir: Path, number: int, start: Start) -> Listed:
    """Who has a number: this start, if nobody had it."""
    file = _file(logdir, number)
    if (listed := read_json(file, Listed)) is not None:
        return listed
    mine = Listed(start, start.job or f"{start.id} {number}")
    if number == 1 and capture_folders(logdir):
        # Of a release that listed no starts.
        mine = Listed(Start("", 0, "", True), "")
    draft = file.with_name(f".{number}-{os.urandom(8).hex()}")
    write_json(draft, mine)
    try:
        os.link(draft, file)
    except FileExistsError:
        listed = read_json(file, Listed)
        if listed is None:
            raise OSError(f"{file} is no list of a start") from None
        return listed
    finally:
        draft.unlink(missing_ok=True)
    return mine


def _joins(logdir: Path, number: int, rank: int) -> bool:
    try:
        _file(logdir, number).with_name(f"{number}.rank{rank}").open("xb").close()
    except FileExistsError:
        return False
    return True


def _file(logdir: Path, number: int) -> Path:
    return logdir / CONTROL_FOLDER / "starts" / str(number)


def _ended(logdir: Path, number: int) -> Path:
    return _file(logdir, number).with_name(f"{number}.ended")
