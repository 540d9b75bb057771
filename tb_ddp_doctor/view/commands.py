"""Commands of other tools that would confirm a finding on its host, ready to be copied.

What comes from a trace goes into a command only as digits: whoever pastes it must not run anything else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from tb_ddp_doctor import record_again
from tb_ddp_doctor.findings import Evidence, Finding, Setting
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.job.setting import setting
from tb_ddp_doctor.view import stacks

#: Findings whose cause is a place in the code, and those of the allocator.
_OF_CODE = frozenset(
    {"straggler", "host-stall", "host-sync", "launch-bound", "dataloader-stall", "op-stall", "slow-step"}
)
_OF_MEMORY = frozenset({"allocator-churn", "memory-fragmentation"})
#: Steps to capture of what occurs in each, and of what does not; fewer recorded ones are too few to tell.
_FEW_STEPS, _MORE_STEPS = 3, 20
#: More ranks than these are not listed in a command.
_NAMED_RANKS = 8
_PID = re.compile(r"[0-9]{1,10}")

_STACKS = "py-spy dump --pid {pid}"
_SAMPLES = "py-spy record --pid {pid} --idle --duration 30 --output rank{rank}.svg"
_WORKERS = "py-spy dump --subprocesses --pid {pid}"
_CLOCKS = "nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER"
_USE = "nvidia-smi dmon -s pucm -c 30"
_TENANTS = "nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv"
_PATHS = "nvidia-smi topo -m"
_PCIE = "nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.width.current,pcie.link.width.max --format=csv"
_NVLINK = "nvidia-smi nvlink --status"
_LINKS = "NCCL_DEBUG=INFO all_reduce_perf -b 8M -e 256M -f 2 -g 1"
_CHOICES = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET torchrun ..."
_MEMORY = "nvidia-smi --query-gpu=timestamp,memory.used,memory.free --format=csv -l 1"
_HOST = (_STACKS, _SAMPLES)
_NETWORK = (_CHOICES, _LINKS, _PATHS, _NVLINK)

#: By rule, and by cause where causes differ.
_BY_RULE: dict[tuple[str, str | None], tuple[str, ...]] = {
    ("straggler", "input"): (_WORKERS, _SAMPLES),
    ("straggler", "slow_device"): (_CLOCKS, _TENANTS, _USE),
    ("straggler", "more_work"): (_USE,),
    ("straggler", "causal_split"): (_USE,),
    ("straggler", "slow_link"): _NETWORK,
    ("straggler", "slow_copies"): (_PCIE, _PATHS, *_HOST),
    ("straggler", "more_copies"): _HOST,
    ("straggler", None): (*_HOST, _CLOCKS),
    ("host-stall", None): _HOST,
    ("host-sync", None): _HOST,
    ("launch-bound", None): _HOST,
    ("dataloader-stall", None): (_WORKERS, _SAMPLES),
    ("load-imbalance", None): (_USE,),
    ("allocator-churn", None): (_MEMORY,),
    ("memory-fragmentation", None): (_MEMORY,),
    ("communication-bound", None): _NETWORK,
    ("small-collectives", None): _NETWORK,
    ("slow-link", None): _NETWORK,
    ("variable-transfers", None): _NETWORK,
    ("no-overlap", None): (_CHOICES,),
    ("pageable-memcpy", None): ("nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv",),
    ("low-occupancy", None): (_USE,),
    ("low-mfu", None): (_CLOCKS, _USE),
}


def commands(job: Job, finding: Finding) -> list[str]:
    """What to run where the first of the finding's ranks runs; empty where nothing outside of the trace tells more."""
    known = _of_device(
        _BY_RULE.get((finding.rule, finding.cause)) or _BY_RULE.get((finding.rule, None), ()), setting(job)
    )
    rank = _shown(finding)
    if rank is None:
        return []
    pid = job.digests[job.ranks.tolist().index(rank)].pid
    return [command.format(pid=pid if _PID.fullmatch(pid) else "PID", rank=rank) for command in known]


def _of_device(known: Sequence[str], its: Setting) -> list[str]:
    """Those that ask a device and a backend that the job has."""
    others = [] if its.device == "cuda" else ["nvidia-smi"]
    others += [] if its.uses_nccl else ["NCCL_"]
    return [command for command in known if not command.startswith(tuple(others))]


class RecordingToMake(msgspec.Struct, frozen=True):
    """What to record once more, to learn more of a finding."""

    #: What the traces at hand do not tell.
    why: str
    #: For a job that has the doctor's recorder; of Nsight Systems' recordings for a job that it starts.
    command: str


def recording(job: Job, finding: Finding) -> RecordingToMake | None:
    """How to capture what the traces lack for a finding; None where another recording would tell no more."""
    its = setting(job)
    if its.recorder == "nsys":
        return _of_nsys(job, finding)
    lacks: list[str] = []
    needs_stacks = finding.rule in _OF_CODE and stacks.lacking(job)
    needs_memory = finding.rule in _OF_MEMORY and not any(len(digest.memory.time_ns) for digest in job.digests)
    if needs_stacks:
        lacks.append("Python stacks, which name file and line")
    if needs_memory:
        lacks.append("the allocator's events")
    seldom = _is_seldom(job, finding)
    if seldom:
        lacks.append(_more_steps(job, finding))
    if not lacks:
        return None
    return RecordingToMake(
        f"The traces lack {' and '.join(lacks)}.",
        record_again.command(
            its,
            ranks=_recorded(job, finding),
            steps=_MORE_STEPS if seldom else _FEW_STEPS,
            stacks=needs_stacks,
            memory=needs_memory,
        ),
    )


def _of_nsys(job: Job, finding: Finding) -> RecordingToMake | None:
    """The same for a job that Nsight Systems recorded, which has neither Python stacks nor the allocator's events."""
    lacks = []
    if finding.rule in _OF_CODE and stacks.lacking(job):
        lacks.append("names of what the CPU does, which NVTX ranges around parts of the training loop give")
    if _is_seldom(job, finding):
        lacks.append(_more_steps(job, finding))
    command = f"{record_again.NSYS} {record_again.NSYS_OUTPUT}\n{record_again.NSYS_EXPORT}"
    return RecordingToMake(f"The recording lacks {' and '.join(lacks)}.", command) if lacks else None


def _is_seldom(job: Job, finding: Finding) -> bool:
    return len(finding.steps) < len(job.steps) or len(job.steps) < _FEW_STEPS


def _more_steps(job: Job, finding: Finding) -> str:
    return f"more steps: it was seen in {len(finding.steps)} of {len(job.steps)}"


def _recorded(job: Job, finding: Finding) -> str:
    """The ranks of a finding, and one other to compare with; "" where that is all or too many to name."""
    others = [rank for rank in job.ranks.tolist() if rank not in finding.ranks]
    if not others or len(finding.ranks) > _NAMED_RANKS:
        return ""
    return ",".join(map(str, sorted([*finding.ranks, others[0]])))


def _shown(finding: Finding) -> int | None:
    """The rank to look at: that of the first evidence, if it is affected."""
    evidence: Evidence | None = next((item for item in finding.evidence if item.rank in finding.ranks), None)
    return evidence.rank if evidence else next(iter(finding.ranks), None)
