"""The texts that say something of ranks, one module each: a text is found by being here.

A module has `MARKS`, of which one stands in the first kilobytes of such a text, and `parse(text, source)`, which yields
the GPUs and stacks that it shows; `source` is the name of the file. A text is anybody's: nothing in it raises.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Protocol, cast

from tb_ddp_doctor.evidence.model import SeenGpu, SeenStack


class KindOfText(Protocol):
    """One kind of text."""

    MARKS: tuple[bytes, ...]

    @staticmethod
    def parse(text: str, source: str) -> Iterator[SeenGpu | SeenStack]:
        """What a text shows, in its order."""


#: Every kind, in the order of modules.
TEXTS = tuple(
    cast("KindOfText", importlib.import_module(module.name))
    for module in pkgutil.iter_modules(__path__, f"{__name__}.")
)
