"""For multiprocessing's server alone: a process whose parent has gone says nothing.

The server forks a process, which then reads from its parent what to do. A parent that is stopped meanwhile, as by
Ctrl-C in TensorBoard, leaves nothing to read, and Python would print that it is missing.
"""

from __future__ import annotations

import sys
from types import TracebackType


def _say_unless_left(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, EOFError):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _say_unless_left
