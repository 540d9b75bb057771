"""What is deleted of captures: only files that a record of the same job lists, with the size that it says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tb_ddp_doctor.capture.directory import CaptureFolder, CaptureVerdict, Claim, capture_folders, read_json
from tb_ddp_doctor.capture.starts import start_folders
from tb_ddp_doctor.discover.names import DIGEST_SUFFIX
from tb_ddp_doctor.evidence.model import CaptureRecord


class _Owned(msgspec.Struct, frozen=True):
    """A file that the doctor wrote."""

    folder: CaptureFolder
    path: Path
    size: int

    @property
    def is_trace(self) -> bool:
        return self.path.suffix != DIGEST_SUFFIX


def trim(logdir: Path, job: str, most_bytes: int, but: CaptureFolder) -> None:
    """Delete the traces of a job's oldest captures, then their digests, until all of it take no more; `but` stays.

    Captures of other jobs in the same directory neither count nor go. The oldest are those of the first start, and of
    one start those of its first steps.
    """
    folders = [
        (number, folder)
        for number, path in start_folders(logdir)
        for folder in capture_folders(path)
        if (records := folder.records()) and all(record.job == job for record in records.values())
    ]
    owned = [(number, file) for number, folder in folders for file in _owned(folder)]
    excess = sum(file.size for _, file in owned) - most_bytes
    for _, file in sorted(owned, key=lambda one: (not one[1].is_trace, one[0], one[1].folder.step)):
        if excess <= 0:
            break
        if file.folder.path != but.path:
            file.path.unlink(missing_ok=True)
            excess -= file.size
    for _, folder in folders:
        if folder.path != but.path:
            _forget_if_empty(folder)


def _owned(folder: CaptureFolder) -> Iterator[_Owned]:
    for record in folder.records().values():
        yield from _of(folder, record)


def _of(folder: CaptureFolder, record: CaptureRecord) -> Iterator[_Owned]:
    """The files of a record that are as it says: whatever else has such a name is somebody else's."""
    mine = {folder.trace(record.rank).name, folder.digest(record.rank).name}
    for name, size in record.files.items():
        path = folder.path / name
        with contextlib.suppress(OSError):
            if name in mine and path.lstat().st_size == size and not path.is_symlink():
                yield _Owned(folder, path, size)


def _forget_if_empty(folder: CaptureFolder) -> None:
    """Remove a capture's records and verdict, and its folder, once all their files are deleted."""
    records = folder.records()
    if not records or any((folder.path / name).exists() for record in records.values() for name in record.files):
        return
    for rank in records:
        folder.record(rank).unlink(missing_ok=True)
    _forget_verdict(folder)
    with contextlib.suppress(OSError):
        folder.path.rmdir()


def _forget_verdict(folder: CaptureFolder) -> None:
    if read_json(folder.verdict, CaptureVerdict) is not None:
        folder.verdict.unlink(missing_ok=True)
    if read_json(folder.claim, Claim) is not None:
        folder.claim.unlink(missing_ok=True)
