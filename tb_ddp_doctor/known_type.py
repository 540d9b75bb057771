"""Types that msgspec decodes are made known to it by one thread at a time.

msgspec looks at the fields of a struct when it is first asked for it. Where two threads ask at once, the second one
sees a half of it and the process dies (seen with msgspec 0.22); where that is TensorBoard, the tab is gone.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_LOCK = threading.Lock()
_KNOWN: dict[Any, Any] = {}


def known(kind: type[T]) -> type[T]:
    """The type, once msgspec knows it: `msgspec.json.decode(data, type=known(kind))`."""
    with _LOCK:
        # Always the same object: msgspec keeps what it knows of `Box[int]` in it, and Python may make another one.
        if kind not in _KNOWN:
            msgspec.json.Decoder(kind)
            _KNOWN[kind] = kind
        type_: type[T] = _KNOWN[kind]
    return type_
