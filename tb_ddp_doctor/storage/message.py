"""What a process that read a file hands back, as bytes that may hold anything: they are read by the types alone.

Structs, tables of them and columns of numpy travel; each value is checked against the type that it stands for, and a
column against its element type, its axes and its length. No code is in a message, as it would be in a pickle.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tb_ddp_doctor.known_type import known
from tb_ddp_doctor.storage.array_type import element_type

if TYPE_CHECKING:
    import numpy as np


#: What msgspec raises for bytes that it does not take: its own, text that is no UTF-8, and lists that nest too deep.
REFUSALS = (msgspec.MsgspecError, UnicodeError, RecursionError)


class MessageError(ValueError):
    """A message that is not of the type that was expected."""


def packed(value: Any) -> bytes:
    """A message that holds the value; half characters in its texts, as of names that are no UTF-8, are spelled out."""
    try:
        return msgspec.msgpack.encode(value, enc_hook=_plain)
    except UnicodeEncodeError:
        return msgspec.msgpack.encode(_whole(msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=_plain)))


def json_of(value: Any) -> bytes:
    """The value as JSON, with half characters in its texts spelled out."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_whole(msgspec.to_builtins(value)))


def whole_text(text: str) -> str:
    """A text with its half characters spelled out, since no message holds them."""
    return text.encode("utf-8", "backslashreplace").decode()


def _whole(plain: Any) -> Any:
    if isinstance(plain, str):
        return whole_text(plain)
    if isinstance(plain, dict):
        return {_whole(key): _whole(value) for key, value in plain.items()}
    return [_whole(each) for each in plain] if isinstance(plain, (list, tuple)) else plain


def unpacked(message: bytes, kind: Any) -> Any:
    """The value of that type which a message holds; its columns are read-only. Raises MessageError."""
    try:
        return _decoder(kind).decode(message)
    except REFUSALS as error:
        raise MessageError(str(error)) from None


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(known(kind), dec_hook=_typed)


def _plain(value: Any) -> Any:
    # Who imports numpy first decides on its threads: not those who send no columns.
    import numpy as np

    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"a {type(value).__name__} cannot be sent")


def _typed(kind: Any, given: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, Path) and isinstance(given, str):
        return Path(given)
    if (dtype := element_type(kind)) is not None:
        return _column(dtype, given)
    raise ValueError(f"a {kind} cannot be received")


def _column(dtype: np.dtype[Any], given: Any) -> np.ndarray[Any, Any]:
    import numpy as np

    name, shape, data = msgspec.convert(given, tuple[str, list[int], bytes])
    if name != dtype.str:
        raise ValueError(f"a column of {name[:16]!r}, not of {dtype.str!r}")
    if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"a column of {shape[:4]} values in {len(data)} bytes")
    if dtype.kind == "b":
        # Any other byte would be a flag that is neither true nor false.
        dtype, data = np.dtype(np.bool_), bytes(map(bool, data))
    return np.frombuffer(data, dtype).reshape(shape)
