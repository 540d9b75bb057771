"""What the routes `slice` and `lanes` answer: parameters are checked here, since anybody can send anything."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping

import msgspec

from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.slices.cut import SliceWindow, cut
from tb_ddp_doctor.slices.files import writer
from tb_ddp_doctor.slices.lanes import lanes
from tb_ddp_doctor.slices.model import SliceError
from tb_ddp_doctor.storage.cache_directory import default_directory

#: Modules that write them, by what a request calls them.
_FORMATS = {"native": "native", "json": "chrome", "columns": "columns"}
#: As many digits as always fit 63 bits.
_NUMBER = re.compile(r"[0-9]{1,18}|[0-8][0-9]{18}")
_LONGEST_LIST = 1_000


def answer(result: Result, asked: Mapping[str, str]) -> tuple[bytes, str]:
    """A slice and its content type; SliceError, with a sentence, for a request that makes no sense."""
    form = asked.get("format", "native")
    if form not in _FORMATS:
        raise SliceError(f"There is no format {form[:32]!r}; there are: {', '.join(_FORMATS)}.")
    chosen = _window(asked)
    module = writer(_FORMATS[form])
    file = io.BytesIO()
    # A page shows the user's own functions; a file has all.
    module.write(cut(result, Cache(default_directory()), chosen, own_code=form == "columns"), file)
    return file.getvalue(), module.CONTENT_TYPE


def lanes_answer(result: Result, asked: Mapping[str, str]) -> tuple[bytes, str]:
    """The lanes of some ranks and their content type; SliceError, with a sentence, for a request without sense."""
    return msgspec.json.encode(lanes(result.job, _window(asked))), "application/json"


def _window(asked: Mapping[str, str]) -> SliceWindow:
    ranks = asked.get("ranks", "")
    if not ranks or len(ranks) > _LONGEST_LIST:
        raise SliceError("Which ranks? Name a few: ranks=0,3.")
    return SliceWindow(
        ranks=tuple(sorted({_number("ranks", rank) for rank in ranks.split(",")})),
        start_ns=_number("start", asked.get("start", "")),
        end_ns=_number("end", asked.get("end", "")),
    )


def _number(name: str, text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise SliceError(f"{name} takes whole numbers, ns of the common clock for start and end, not {text[:32]!r}.")
    return int(text)
