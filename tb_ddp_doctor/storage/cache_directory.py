"""Where what was made of log directories is kept, and how much of it."""

from __future__ import annotations

import os
from pathlib import Path

#: A job of 128 ranks with 400 MB of JSON each takes 10 GB of columns.
MAX_BYTES = 20 << 30


def default_directory() -> Path:
    """Where entries are kept unless the user says otherwise: $DDP_DOCTOR_CACHE, else the user's cache directory."""
    if chosen := os.environ.get("DDP_DOCTOR_CACHE"):
        return Path(chosen)
    from platformdirs import user_cache_path

    return user_cache_path("ddp-doctor")
