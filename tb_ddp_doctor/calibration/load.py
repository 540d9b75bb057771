"""A calibration from a file that is named, or that lies beside the traces.

Everything in it is untrusted: only so much is read, and what is not finite, not positive or without order is refused.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import msgspec

from tb_ddp_doctor.calibration.model import SCHEMA_VERSION, Calibration, Curve
from tb_ddp_doctor.calibration.nccl_tests import parse
from tb_ddp_doctor.known_type import known

#: 100,000 ranks with their measures take less.
_MOST_BYTES = 64 << 20


class CalibrationError(ValueError):
    """A file that is no calibration. Its text is a sentence for users that names the file."""


#: What makes one.
_MEASURE = "To measure it: torchrun ... -m tb_ddp_doctor.check -o DIR."


def load(path: Path) -> Calibration:
    """The calibration in a file: `calibration.json`, or what nccl-tests printed. Raises CalibrationError."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise CalibrationError(f"{path} cannot be read: {error.strerror}.") from None
    if len(data) > _MOST_BYTES:
        raise CalibrationError(f"{path} is larger than any calibration ({_MOST_BYTES >> 20} MiB).")
    if not data.lstrip().startswith(b"{"):
        parsed = parse(data.decode(errors="replace"), path.name)
        if parsed is None:
            raise CalibrationError(f"{path} is neither calibration.json nor what nccl-tests prints. {_MEASURE}")
        return parsed
    try:
        calibration = msgspec.json.decode(data, type=known(Calibration))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise CalibrationError(f"{path} is no calibration.json: {error}.") from None
    if calibration.schema_version > SCHEMA_VERSION:
        raise CalibrationError(
            f"{path} has version {calibration.schema_version}; this ddp-doctor knows up to {SCHEMA_VERSION}. "
            "pip install -U tb-ddp-doctor reads newer ones."
        )
    if not all(map(_is_sane, calibration.curves)):
        raise CalibrationError(f"{path} holds times or sizes that are not positive, or not in order. {_MEASURE}")
    return calibration


def _is_sane(curve: Curve) -> bool:
    sizes = [point.bytes for point in curve.points]
    times = [point.time_us for point in curve.points]
    ordered = bool(sizes) and sizes[0] > 0 and all(a < b for a, b in pairwise(sizes))
    return ordered and curve.size > 0 and all(math.isfinite(time) and time > 0 for time in times)
