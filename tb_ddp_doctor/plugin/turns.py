"""How many answers are computed at once: anybody who reaches TensorBoard can ask for many."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: A slice reads the columns of up to 16 ranks, a prediction plays all steps again; two keep a small machine busy.
AT_ONCE = 2
#: An answer takes tenths of a second, so that this is a queue of some dozens.
PATIENCE_S = 20.0
#: Each one that waits holds a thread and a connection of TensorBoard's.
MOST_WAITING = 64
#: When who was sent away may ask again.
RETRY_AFTER_S = 5


class TooManyError(Exception):
    """Too many ask. Its text is a sentence for users."""

    def __init__(self) -> None:
        super().__init__("Too many ask for computed answers at once. Ask again in a moment.")


class Turns:
    """Lets a few in at a time; some others wait, but not for ever."""

    def __init__(self) -> None:
        self._free = threading.Semaphore(AT_ONCE)
        self._places = threading.Semaphore(AT_ONCE + MOST_WAITING)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Raises BusyError where it does not come in time."""
        if not self._places.acquire(blocking=False):
            raise TooManyError
        try:
            if not self._free.acquire(timeout=PATIENCE_S):
                raise TooManyError
            try:
                yield
            finally:
                self._free.release()
        finally:
            self._places.release()
