"""The verdicts of a start in TensorBoard: time series of their numbers, and their texts, in one event file.

TensorBoard reads one file after the other, and drops the later steps of a series when an earlier one comes: so there is
one file, to which all children append, and points come in the order of steps. A verdict before which another one may
still come waits for that (`pending`). Where an earlier one comes late all the same, the later ones are written again
behind it.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from tb_ddp_doctor.capture.directory import (
    SCALARS_FOLDER,
    CaptureFolder,
    CaptureVerdict,
    capture_folders,
    read_json,
    refuse_link,
)
from tb_ddp_doctor.storage.file_lock import is_locked, lock

#: TensorBoard reads what has "tfevents" in its name.
_NAME = "events.out.tfevents.1.ddp_doctor"
_PENDING = "verdict.pending"
#: Around each record: its length and the check sum of that before it, its own check sum behind it.
_HEAD, _TAIL = struct.Struct("<QL"), 4


class _Event(Protocol):
    """tensorboard's Event, as far as it is written here."""

    step: int

    def SerializeToString(self) -> bytes: ...  # noqa: N802


@contextlib.contextmanager
def pending(folder: CaptureFolder) -> Iterator[None]:
    """Meanwhile the verdict of this capture may come."""
    folder.path.mkdir(parents=True, exist_ok=True)
    path = folder.path / _PENDING
    if path.is_symlink():
        path.unlink()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
    with open(descriptor, "r+b") as file:
        lock(file)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def publish(start_folder: Path) -> None:
    """Add the verdicts of a start that TensorBoard does not have yet to its event file. Raises OSError."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    path = start_folder / SCALARS_FOLDER / _NAME
    refuse_link(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
    with open(descriptor, "r+b") as file:
        # What is no event would be cut off: of a file with another name too.
        if os.fstat(descriptor).st_nlink > 1:
            raise OSError(f"{path} is a link")
        lock(file)
        written = set(_steps(file))
        ready = _ready(start_folder)
        new = [folder.step for folder in ready if folder.step not in written]
        if not new:
            return
        # Behind a step that comes late, all that follow once more.
        verdicts = [read_json(folder.verdict, CaptureVerdict) for folder in ready if folder.step >= new[0]]
        events = [_event(verdict) for verdict in verdicts if verdict is not None]
        if not file.tell():
            events.insert(0, _first_event())
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())


def _ready(start_folder: Path) -> list[CaptureFolder]:
    """Captures with a verdict, up to the first whose verdict may still come."""
    ready = []
    for folder in capture_folders(start_folder):
        if folder.verdict.exists():
            ready.append(folder)
        elif is_locked(folder.path / _PENDING):
            break
    return ready


def _steps(file: BinaryIO) -> Iterator[int]:
    """The steps in an event file. What a writer that was killed left at its end is cut off."""
    from tensorboard.compat.proto.event_pb2 import Event

    whole = 0
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    while len(head := file.read(_HEAD.size)) == _HEAD.size:
        length, _ = _HEAD.unpack(head)
        if file.tell() + length + _TAIL > size:
            break
        yield Event.FromString(file.read(length)).step
        whole = file.seek(_TAIL, os.SEEK_CUR)
    file.seek(whole)
    file.truncate()


def _first_event() -> _Event:
    from tensorboard.compat.proto.event_pb2 import Event

    event: _Event = Event(file_version="brain.Event:2")
    return event


def _event(verdict: CaptureVerdict) -> _Event:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.scalar.metadata import create_summary_metadata as of_scalar
    from tensorboard.plugins.text.metadata import create_summary_metadata as of_text
    from tensorboard.util.tensor_util import make_tensor_proto

    values = [
        Summary.Value(
            tag=f"ddp_doctor/{name}",
            metadata=of_scalar(display_name="", description=""),
            tensor=make_tensor_proto(value, dtype="float32"),
        )
        for name, value in verdict.scalars.items()
    ]
    values.append(
        Summary.Value(
            tag="ddp_doctor/verdict",
            metadata=of_text(display_name="", description=""),
            tensor=make_tensor_proto(verdict.text),
        )
    )
    event: _Event = Event(wall_time=verdict.began_s, step=verdict.step, summary=Summary(value=values))
    return event
