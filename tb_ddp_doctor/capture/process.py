"""Who this process is in its job."""

from __future__ import annotations

import os
import sys

_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD_SIZE = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def rank_and_world_size() -> tuple[int, int]:
    """As torch.distributed says, and without it what the launcher set; (0, 1) where nobody says."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    for rank, world_size in zip(_RANK, _WORLD_SIZE, strict=True):
        told = os.environ.get(rank, ""), os.environ.get(world_size, "")
        if all(text.isdecimal() for text in told):
            return int(told[0]), max(int(told[1]), 1)
    return 0, 1
