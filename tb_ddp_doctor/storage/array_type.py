"""What the type of a column says of its elements."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_origin

if TYPE_CHECKING:
    import numpy as np


@cache
def element_type(kind: Any) -> np.dtype[Any] | None:
    """The element type of a column's type, such as `NDArray[np.int64]` or a NewType of it; None of any other type.

    `NDArray[np.int64]` is `np.ndarray[..., np.dtype[np.int64]]` up to NumPy 2.4. From 2.5 on it is an alias with a name
    (`type NDArray[T] = ...`), which Python leaves as it is.
    """
    # Who imports numpy first decides on its threads.
    import numpy as np
    from numpy.typing import NDArray

    plain = getattr(kind, "__supertype__", kind)
    named: object = NDArray
    element: np.dtype[Any] | None = None
    if get_origin(plain) is np.ndarray:
        _, dtype = get_args(plain)
        element = np.dtype(get_args(dtype)[0])
    elif get_origin(plain) is named:
        element = np.dtype(get_args(plain)[0])
    return element
