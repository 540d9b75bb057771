"""Who this process is in its job, and which start of the job it belongs to."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec

_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD_SIZE = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
#: What launchers call a job. torchrun calls a job that was not named "none".
_JOB = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "FLUX_JOB_ID",
    "PMIX_NAMESPACE",
    "TORCHELASTIC_RUN_ID",
)
#: How often it was started again, and where its ranks meet.
_START = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
_STORE_KEY = "tb_ddp_doctor/start"


class Start(msgspec.Struct, frozen=True):
    """One start of a job: what runs from the launch of its ranks until they end."""

    #: The same on all ranks.
    id: str
    world_size: int
    #: The name of the job, the same when it is started again; "" where its launcher does not name it.
    job: str
    #: Whether no other start has this id.
    is_unique: bool


def rank_and_world_size() -> tuple[int, int]:
    """As torch.distributed says, and without it what the launcher set; (0, 1) where nobody says."""
    distributed = _distributed()
    if distributed is not None:
        return int(distributed.get_rank()), int(distributed.get_world_size())
    for rank, world_size in zip(_RANK, _WORLD_SIZE, strict=True):
        named = os.environ.get(rank, ""), os.environ.get(world_size, "")
        if all(text.isdecimal() for text in named):
            return int(named[0]), max(int(named[1]), 1)
    return 0, 1


def pipeline_stage() -> int | None:
    """This rank's stage of the pipeline in a job of Megatron's; None in others."""
    parallel_state = sys.modules.get("megatron.core.parallel_state")
    try:
        if parallel_state is None or not parallel_state.model_parallel_is_initialized():
            return None
        return int(parallel_state.get_pipeline_model_parallel_rank())
    except Exception:  # of whatever version it is
        return None


def start(world_size: int) -> Start:
    """The start that this process belongs to. Asks no other rank to take part, as a collective would.

    Of a single process it is its own time and number. Ranks of torch.distributed take what the first of them wrote into
    the store that they met at. Without that they have what their launcher says, which the next start may have again.
    """
    job = _named(_JOB)
    mine = f"{time.time_ns()}-{socket.gethostname()}-{os.getpid()}"
    agreed = mine if world_size == 1 else _agreed(mine)
    return Start(agreed or f"{job} {_named(_START)}", world_size, job, agreed is not None)


def _agreed(proposal: str) -> str | None:
    """What the first rank proposed; None where no store tells."""
    distributed = _distributed()
    if distributed is None:
        return None
    try:
        store: Any = distributed.distributed_c10d._get_default_store()
        return str(store.compare_set(_STORE_KEY, "", proposal).decode())
    except Exception:  # not every store compares, and torch does not promise this function
        return None


def _distributed() -> Any:
    """torch.distributed where the process is a rank of it."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    is_rank = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if is_rank else None


def _named(variables: tuple[str, ...], environment: Mapping[str, str] = os.environ) -> str:
    values = {name: environment.get(name, "") for name in variables}
    return " ".join(f"{name}={value}" for name, value in values.items() if value not in ("", "none"))
