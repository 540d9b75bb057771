"""Slices as files: the format is the name's ending."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import IO, Protocol, cast

from tb_ddp_doctor.slices.model import Slice, SliceError
from tb_ddp_doctor.storage.whole_file import written_whole


class Format(Protocol):
    """A module that writes slices."""

    CONTENT_TYPE: str

    def write(self, part: Slice, file: IO[bytes]) -> None:
        """Write the slice to a binary file."""


#: Modules of this package by the names' endings.
_FORMATS = {".pftrace": "native", ".perfetto-trace": "native", ".json": "chrome"}


def writer(name: str) -> Format:
    """The module that writes a format, imported when it is first used: only native slices need perfetto and protobuf.

    Raises SliceError, with a sentence, where protobuf is older than perfetto's generated code.
    """
    try:
        return cast(Format, importlib.import_module(f"tb_ddp_doctor.slices.{name}"))
    except Exception as error:  # protobuf raises whatever its release has for code that is too new for it
        raise SliceError(
            f"Native slices need another protobuf than is installed here ({type(error).__name__}: {error}). Chrome's "
            "format (.json) needs none; pip install -U protobuf perfetto mends it."
        ) from None


def check_name(path: Path) -> None:
    """Raise ValueError, with a sentence, for a name whose format is unknown."""
    if path.suffix not in _FORMATS:
        raise ValueError(f"-o {path.name}: the name must end in one of {', '.join(_FORMATS)}, which say the format.")


def save(part: Slice, path: Path) -> None:
    """Write a slice, whole or not at all. Raises OSError, and SliceError where a trace cannot be read again."""
    form = writer(_FORMATS[path.suffix])
    with written_whole(path) as file:
        form.write(part, file)
