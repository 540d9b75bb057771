"""The native library (native/), through ctypes: each package declares the functions of it that it calls."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from ctypes import CDLL
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

#: `SCANNER_VERSION` of native/scanner.h, which any change of what the library and this code have in common raises.
VERSION = 25
#: The type of the result, and those of the arguments, by the function's name.
Prototypes: TypeAlias = Mapping[str, tuple[Any, Sequence[Any]]]


@cache
def load() -> CDLL | None:
    """The shared library; None where it was not built, or is of another version."""
    path = Path(__file__).parents[1] / "trace" / ("_scanner.dll" if sys.platform == "win32" else "_scanner.so")
    try:
        library = CDLL(str(path))
        if library.scanner_version() != VERSION:
            raise OSError(f"its version is {library.scanner_version()}, not {VERSION}")
    except (OSError, AttributeError) as error:
        logging.getLogger(__name__).debug("The native library cannot be used: %s", error)
        return None
    return library


def with_functions(prototypes: Prototypes) -> CDLL | None:
    """The library, with these functions declared; None where there is none."""
    library = load()
    if library is not None:
        for name, (result, arguments) in prototypes.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    return library


def required(prototypes: Prototypes) -> CDLL:
    """The same library. Raises RuntimeError where there is none."""
    library = with_functions(prototypes)
    if library is None:
        raise RuntimeError("the native library was not built")
    return library
