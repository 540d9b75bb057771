"""Asking a file system with a limit of time: a dead mount, or a file that never gives a byte, answers nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

#: A busy network file system takes seconds at worst.
PATIENCE_S = 10.0
T = TypeVar("T")


def within(seconds: float, function: Callable[[], T]) -> T:
    """What the function gives. Raises TimeoutError if it takes longer; it then goes on, in a thread that nobody awaits.

    A thread that waits for the kernel cannot be stopped, and must not keep the program from ending.
    """
    given: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            given.append(function())
        except BaseException as error:  # it is raised where it was asked for
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not given:
        raise TimeoutError(f"It did not answer within {seconds:g} s.")
    return given[0]
