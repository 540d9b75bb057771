"""The log directories that a server was started with: nothing outside of them is read for a client."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from tb_ddp_doctor.discover.names import is_remote
from tb_ddp_doctor.storage.paths import FilePath, ProcessPath


class OutsideError(ValueError):
    """A path that is not below a log directory. Its text is a sentence for users."""


class Roots:
    """Directories, by the name that their runs begin with; of one directory, runs have no such name."""

    def __init__(self, directories: Sequence[str]) -> None:
        """Raises ValueError for a directory that is none, or remote: links in it could not be checked."""
        paths = []
        for directory in directories:
            if is_remote(directory):
                raise ValueError(f"{directory} is remote: ddp-doctor mcp serves directories of this machine.")
            if not Path(directory).is_dir():
                raise ValueError(f"There is no folder {directory}: name the log directories that agents may ask about.")
            paths.append(Path(directory).resolve())
        self.by_name: dict[str, Path] = {}
        for path in dict.fromkeys(paths):
            name, number = path.name or "root", 2
            while name in self.by_name:
                name, number = f"{path.name}_{number}", number + 1
            self.by_name[name] = path

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(self.by_name.values())

    def contains(self, path: FilePath) -> bool:
        """Whether a file lies below a root, once all links are followed."""
        real = Path(os.path.realpath(path.file if isinstance(path, ProcessPath) else str(path)))
        return any(real.is_relative_to(root) for root in self.paths)

    def contain(self, paths: Iterable[FilePath]) -> bool:
        """Whether all files lie below a root."""
        return all(self.contains(path) for path in paths)

    def folder(self, given: str) -> Path:
        """The folder of a relative or absolute path; "" is the only root. Raises OutsideError, and ValueError."""
        if not given and len(self.by_name) > 1:
            raise ValueError(f"Which directory? There are: {', '.join(self.by_name)}.")
        first, _, rest = given.partition("/")
        is_named = len(self.by_name) > 1 and first in self.by_name
        path = self.by_name[first] / rest if is_named else self.paths[0] / given
        if "\0" in given or not self.contains(path):
            raise OutsideError("That path is outside of the log directories that the server was started with.")
        if not path.is_dir():
            raise ValueError("There is no such folder in the log directories.")
        return Path(os.path.realpath(path))
