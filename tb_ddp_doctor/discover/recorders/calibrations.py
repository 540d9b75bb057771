"""What ranks and links can do: `calibration.json` of the doctor's check, and what nccl-tests printed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tb_ddp_doctor.discover.calibration_name import CALIBRATION_NAME
from tb_ddp_doctor.discover.recorder import Beside

_TESTS = re.compile(r"nccl[-_]?tests|(?:^|[._-])(?:all|reduce|broadcast|sendrecv)\w*_perf", re.IGNORECASE)


class Calibrations(Beside):
    """`calibration.json`, and texts with "nccl-tests", "nccl_tests" or "_perf" in their name."""

    name = "tb_ddp_doctor.check"

    def matches(self, name: str) -> bool:
        return name == CALIBRATION_NAME or (_TESTS.search(name) is not None and not name.endswith(".json"))


def preferred(files: Sequence[Path]) -> Path | None:
    """The calibration that counts: of the first folder that has any, `calibration.json` before other files."""
    own = files[0].with_name(CALIBRATION_NAME) if files else None
    return own if own in files else next(iter(files), None)
