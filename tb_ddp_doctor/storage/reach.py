"""How far below a directory is looked for files: on its own file system, and not into any number of folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

#: A job of thousands of ranks has a folder for each at most; `/` has hundreds of thousands.
MOST_FOLDERS = 20_000
#: Folders that are named; more are counted.
_NAMED = 3


@cache
def _of_the_kernel() -> frozenset[int]:
    """The file systems that the kernel makes up: of processes and drivers there are thousands of folders, no traces."""
    places = [Path(place) for place in ("/proc", "/sys", "/dev")]
    root = os.stat("/").st_dev
    return frozenset(place.stat().st_dev for place in places if place.is_dir()) - {root}


def _silent(_folders: int) -> None:
    pass


class Reach:
    """One walk's limits, and what was left out for them.

    With `everywhere` there are none. `looked` is called with the number of folders so far, for each of them. `option`
    is what the user gives to have everything looked into.
    """

    def __init__(
        self, *, everywhere: bool = False, looked: Callable[[int], None] = _silent, option: str = "--everywhere"
    ) -> None:
        self._everywhere, self._looked, self._option = everywhere, looked, option
        self._devices: set[int] = set()
        self._elsewhere: list[str] = []
        self._count = 0
        self.is_stopped = False

    def enters(self, folder: Path, device: int, *, is_link: bool) -> bool:
        """Whether what is in a folder of a device (`st_dev`) is looked at; the walk begins with the first one.

        A link is somebody's wish: it may lead to another file system.
        """
        if self._count >= MOST_FOLDERS and not self._everywhere:
            self.is_stopped = True
            return False
        if not self._devices:
            self._devices.add(device)
        elif device in _of_the_kernel():
            self._elsewhere.append(str(folder))
            return False
        elif is_link:
            self._devices.add(device)
        if device not in self._devices and not self._everywhere:
            self._elsewhere.append(str(folder))
            return False
        self._count += 1
        self._looked(self._count)
        return True

    def left_out(self) -> Iterator[str]:
        """A sentence for each limit that was met."""
        if self.is_stopped:
            yield (
                f"Only the first {MOST_FOLDERS:,} folders below were looked into: name one further down, or look into "
                f"all with {self._option}."
            )
        if self._elsewhere:
            number, named = len(self._elsewhere), sorted(self._elsewhere)[:_NAMED]
            which = f"{', '.join(named)}{f' and {number - _NAMED} more' if number > _NAMED else ''}"
            what = "A folder on another file system is" if number == 1 else "Folders on other file systems are"
            yield f"{what} left out ({which}): name one, or look into all with {self._option}."
