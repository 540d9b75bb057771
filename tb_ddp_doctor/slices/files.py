"""Slices as files: the format is the name's ending."""

from __future__ import annotations

from pathlib import Path

from tb_ddp_doctor.slices import chrome, native
from tb_ddp_doctor.slices.model import Slice
from tb_ddp_doctor.store import written_whole

_FORMATS = {".pftrace": native, ".perfetto-trace": native, ".json": chrome}


def check_name(path: Path) -> None:
    """Raise ValueError, with a sentence, for a name whose format is unknown."""
    if path.suffix not in _FORMATS:
        raise ValueError(f"{path.name}: the name of a trace ends in one of {', '.join(_FORMATS)}.")


def save(part: Slice, path: Path) -> None:
    """Write a slice, whole or not at all. Raises OSError, and SliceError where a trace cannot be read again."""
    with written_whole(path) as file:
        _FORMATS[path.suffix].write(part, file)
