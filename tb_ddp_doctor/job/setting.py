"""What a job is, as far as advice depends on it."""

from __future__ import annotations

from collections.abc import Collection

from tb_ddp_doctor.findings import Setting
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.trace import names

#: Backends whose collectives the CPU carries out.
_OF_CPUS = ("gloo", "mpi", "ucc")


def setting(job: Job) -> Setting:
    """What a job is, by its traces and by what lies beside them."""
    hosts = set(job.nodes)
    logdir = next((known.logdir for known in job.rank_evidence.values() if known.logdir), "")
    return Setting(
        hosts=0 if "" in hosts and len(job.nodes) > 1 else len(hosts),
        backend=_backend({digest.header.backend.lower() for digest in job.digests}, has_device=job.has_device),
        device="cpu" if not job.has_device else "rocm" if names.is_amd(job.device) else "cuda",
        has_doctor=bool(logdir),
        logdir=logdir,
        recorder="nsys" if all(digest.header.recorder == "nsys" for digest in job.digests) else "profiler",
    )


def _backend(said: Collection[str], *, has_device: bool) -> str:
    """The backend of the tensors that are computed with, of names such as "nccl" and "cpu:gloo,cuda:nccl"."""
    named = " ".join(sorted(said))
    if has_device and ("nccl" in named or not any(each in named for each in _OF_CPUS)):
        return "nccl"
    return next((each for each in _OF_CPUS if each in named), "gloo")
