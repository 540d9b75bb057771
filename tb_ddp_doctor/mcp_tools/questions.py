"""What tools are asked: the arguments of each, with what they mean. `server` makes JSON Schemas of these types."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tb_ddp_doctor.findings import OWNERS

Offset = Annotated[int, msgspec.Meta(ge=0, description="first row: next_offset of the page before, 0 at the beginning")]
RunName = Annotated[
    str, msgspec.Meta(description="a run's name, as list_runs gives it (with or without its <data> mark)")
]
Numbers = Annotated[str, msgspec.Meta(description="numbers such as 0,5-7; empty for all")]
Owner = Literal["", "compute", "copy", "wait", "transfer", "input", "sync", "alloc", "dispatch", "host"]
assert Owner.__args__[1:] == OWNERS  # type: ignore[attr-defined]  # noqa: S101 - the same owners


class ToolArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of a tool."""


class OfAll(ToolArguments, frozen=True, kw_only=True):
    """About a whole log directory."""

    offset: Offset = 0


class OfRun(ToolArguments, frozen=True, kw_only=True):
    """About one run."""

    run: RunName
    offset: Offset = 0


class OfFinding(ToolArguments, frozen=True, kw_only=True):
    """About one finding."""

    run: RunName
    finding: Annotated[
        str, msgspec.Meta(description="its id, as diagnose gives it, such as straggler or slow-kernels:2")
    ]
    offset: Offset = 0


class OfTable(ToolArguments, frozen=True, kw_only=True):
    """About ranks and steps."""

    run: RunName
    by: Annotated[
        Literal["rank", "rank-and-step"],
        msgspec.Meta(description="a row for each rank, mean over steps; or for each step"),
    ] = "rank"
    ranks: Numbers = ""
    steps: Numbers = ""
    owner: Annotated[Owner, msgspec.Meta(description="with min_ms and for sorting: a class of time")] = ""
    min_ms: Annotated[
        float, msgspec.Meta(ge=0, description="only rows with at least this of the owner, else of busy time")
    ] = 0.0
    sort: Annotated[Literal["rank", "busy", "step", "owner"], msgspec.Meta(description="by rank; or longest first")] = (
        "rank"
    )
    offset: Offset = 0


class OfWhatIf(ToolArguments, frozen=True, kw_only=True):
    """About a step without some findings."""

    run: RunName
    fixed: Annotated[
        tuple[str, ...],
        msgspec.Meta(max_length=200, description="ids of findings, or names of rules; of none, each alone and all"),
    ] = ()
    offset: Offset = 0


class OfPlan(ToolArguments, frozen=True, kw_only=True):
    """About a step with other settings; the fields are those of `ddp-doctor plan`. Of none, an overview."""

    run: RunName
    bucket_mb: Annotated[float | None, msgspec.Meta(description="bucket_cap_mb of DistributedDataParallel, MiB")] = None
    ranks: Annotated[int | None, msgspec.Meta(description="train on so many ranks")] = None
    mesh: Annotated[str | None, msgspec.Meta(description="ranks along each dimension, as dp=16,tp=4,pp=4")] = None
    links: Annotated[float | None, msgspec.Meta(description="links so many times as fast")] = None
    dtype: Annotated[str | None, msgspec.Meta(description="of gradients: fp32, fp16, bf16 or fp8")] = None
    sharding: Annotated[
        str | None, msgspec.Meta(description="ddp, zero1, zero2, zero3 ... as ddp-doctor plan has them")
    ] = None
    prefetch: Annotated[int | None, msgspec.Meta(description="units that FSDP gathers ahead")] = None
    gathers_in_time: Annotated[
        bool, msgspec.Meta(description="no all-gather of FSDP waits for the CPU to launch it")
    ] = False
    accumulate: Annotated[int | None, msgspec.Meta(description="backward passes for each AllReduce")] = None
    workers: Annotated[int | None, msgspec.Meta(description="num_workers of the DataLoader")] = None
    device: Annotated[str | None, msgspec.Meta(description="another GPU, such as H200")] = None
    strong: Annotated[bool, msgspec.Meta(description="with ranks or mesh: the same work in all")] = False
    graphs: Annotated[bool, msgspec.Meta(description="with CUDA graphs")] = False
    fixed: Annotated[tuple[str, ...], msgspec.Meta(max_length=200, description="with these findings fixed")] = ()
    offset: Offset = 0


class OfTwo(ToolArguments, frozen=True, kw_only=True):
    """About two runs."""

    before: RunName
    after: RunName
    table: Annotated[
        Literal["owners", "findings", "communication", "kernels", "operators"], msgspec.Meta(description="which rows")
    ] = "owners"
    offset: Offset = 0


class OfHistory(ToolArguments, frozen=True, kw_only=True):
    """About the hours of a job."""

    directory: Annotated[
        str,
        msgspec.Meta(
            description="a job's log directory, with a Doctor's step times or a log, relative to the served one"
        ),
    ] = ""
    since: Annotated[int | None, msgspec.Meta(description="steps from this one on")] = None
    offset: Offset = 0


class OfCollectives(ToolArguments, frozen=True, kw_only=True):
    """About what NCCL's or RCCL's Inspector wrote in hours."""

    directory: Annotated[
        str, msgspec.Meta(description="a log directory with the Inspector's files, relative to the served one")
    ] = ""
    table: Annotated[
        Literal["kinds", "changes", "late_ranks", "peers"],
        msgspec.Meta(
            description="bandwidth by kind and size, when it changed, ranks that arrive last, or transfers rank to rank"
        ),
    ] = "kinds"
    offset: Offset = 0


class OfStuck(ToolArguments, frozen=True, kw_only=True):
    """About a job that hangs."""

    run: Annotated[
        str, msgspec.Meta(description="a run of kind dumps, as list_runs gives it; empty where there is one")
    ] = ""
    offset: Offset = 0


class OfMemory(ToolArguments, frozen=True, kw_only=True):
    """About a job that left snapshots of memory and no traces."""

    run: Annotated[
        str, msgspec.Meta(description="a run of kind memory, as list_runs gives it; empty where there is one")
    ] = ""
    offset: Offset = 0


class OfSlice(ToolArguments, frozen=True, kw_only=True):
    """About a piece of evidence."""

    run: RunName
    finding: Annotated[str, msgspec.Meta(description="its id, as diagnose gives it")]
    evidence: Annotated[int, msgspec.Meta(ge=1, description="the number of the piece of evidence, from 1 on")] = 1


class OfTerm(ToolArguments, frozen=True, kw_only=True):
    """About a word of the doctor's."""

    term: Annotated[
        str, msgspec.Meta(max_length=200, description="a rule, such as host-sync, or a term, such as busbw; empty: all")
    ] = ""
    offset: Offset = 0
