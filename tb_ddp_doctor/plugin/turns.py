"""How many costly answers are made at once: anybody who reaches TensorBoard can ask for many."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Each slice reads the columns of up to 16 ranks; two keep a small machine busy.
AT_ONCE = 2
#: A slice takes tenths of a second, so that this is a queue of some dozens.
PATIENCE_S = 20.0


class BusyError(Exception):
    """Too many ask. Its text is a sentence for users."""


class Turns:
    """Lets a few in at a time; the others wait, but not for ever."""

    def __init__(self) -> None:
        self._free = threading.Semaphore(AT_ONCE)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Raises BusyError where it does not come in time."""
        if not self._free.acquire(timeout=PATIENCE_S):
            raise BusyError("Too many slices are being cut at once. Ask again in a moment.")
        try:
            yield
        finally:
            self._free.release()
