"""How patient reading is: by how much longer than usual a file may take to answer, and to be read."""

from __future__ import annotations

import os
from contextlib import suppress


def patience() -> float:
    """The factor of all such limits: $DDP_DOCTOR_PATIENCE; 1 where that is not set, or is no number from 0.01 to 1,000.

    Slow machines and file systems need more. Less is of use where many files are known to hang.
    """
    with suppress(ValueError):
        factor = float(os.environ.get("DDP_DOCTOR_PATIENCE", ""))
        if 0.01 <= factor <= 1000:
            return factor
    return 1.0
