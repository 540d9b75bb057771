"""What the Python stacks of all ranks say of a job that hangs: which ranks are not where the others wait."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import takewhile

from msgspec.structs import replace

from tb_ddp_doctor.findings import FileWarning, FixParts
from tb_ddp_doctor.flight.model import StackFrame
from tb_ddp_doctor.flight.stacks import Stack
from tb_ddp_doctor.stuck import text
from tb_ddp_doctor.stuck.model import CallSite, RankState, StuckCall, StuckFinding, StuckRun, Verdict
from tb_ddp_doctor.stuck.roots import Cause

#: Where a rank that waits for others is: in torch.distributed, in what waits for the device, or in backward, which
#: waits for its AllReduces. Modules that run inside of FSDP or DDP have frames of their own within.
_WAITS = re.compile(
    r"torch[/\\](?:distributed[/\\]|nn[/\\]parallel[/\\]|autograd[/\\]graph\.py|cuda[/\\](?:__init__|streams)\.py)"
)
#: What is around the call itself: checks, logging, timing.
_WRAPPED = re.compile(r"torch[/\\]distributed[/\\]distributed_c10d\.py")
_STANDARD = re.compile(r"[/\\]lib[/\\]python\d")
#: Frames of libraries between a wait and the function that the user called.
_DEEP = 8
#: Ranks whose place is told in a sentence.
_TOLD = 4


def place(stack: Stack) -> str:
    """Where a rank is: "wait (threading.py:320), called by step (train.py:12)"."""
    own = _own(stack)
    inner = stack.frames[0]
    called = f", called by {_at(own)}" if own not in (None, inner) else ""
    return f"{_at(inner)}{called}"


def with_threads(run: StuckRun, stacks: Mapping[int, Stack]) -> StuckRun:
    """What the dumps say, with where the ranks at the root of each finding are in Python."""
    findings = []
    for finding in run.findings:
        known = [stacks[rank] for rank in finding.ranks[:_TOLD] if rank in stacks]
        said = "".join(f" In Python, rank {stack.rank} is in {place(stack)}." for stack in known)
        findings.append(replace(finding, why=f"{finding.why}{said}"))
    return replace(run, findings=tuple(findings))


def examined(
    name: str, stacks: Mapping[int, Stack], warnings: Sequence[FileWarning], traces: Sequence[str]
) -> StuckRun:
    """What the stacks alone say, where no dump of the Flight Recorder can be read.

    Where some ranks wait for others, those that do not are what they wait for. Where all wait, those at another line
    than most have come to something else. Where none waits, nothing is known to be stuck.
    """
    size = max([*(stack.world_size for stack in stacks.values()), *(rank + 1 for rank in stacks)])
    waiting = [rank for rank in sorted(stacks) if _waits(stacks[rank])]
    missing = tuple(sorted(set(range(size)) - set(stacks)))
    cause: Cause = "missing" if len(waiting) < len(stacks) else "wrong-order"
    odd = [rank for rank in sorted(stacks) if rank not in waiting] if cause == "missing" else _elsewhere(stacks)
    if not odd and missing:
        cause, odd = "no-dump", list(missing)
    findings = (_finding(cause, odd, stacks, size),) if waiting and odd else ()
    verdict: Verdict = "stuck" if findings else "unknown"
    return StuckRun(
        name=name,
        world_size=size,
        ranks=tuple(sorted(stacks)),
        missing_ranks=missing,
        hosts=tuple(stacks[rank].host for rank in sorted(stacks)),
        verdict=verdict,
        headline=f"Stuck: {findings[0].title}" if findings else _nothing(stacks, waiting),
        findings=findings,
        waits=(),
        groups=(),
        library="",
        recorder="stacks",
        warnings=(
            *warnings,
            FileWarning(
                name,
                "No Flight Recorder dump is here: stacks show where ranks are, and not which call they wait in. With "
                "TORCH_FR_BUFFER_SIZE=2000 torch records that (NCCL; gloo since torch 2.13).",
            ),
        ),
        traces=tuple(traces),
    )


def _waits(stack: Stack) -> bool:
    """Whether a rank waits for others."""
    inner = list(takewhile(_is_library, stack.frames[:_DEEP]))
    return bool(inner) and bool(_WAITS.search(inner[0].file) or any(_WRAPPED.search(frame.file) for frame in inner))


def _is_library(frame: StackFrame) -> bool:
    return frame.is_library or bool(_STANDARD.search(frame.file))


def _own(stack: Stack) -> StackFrame | None:
    """The innermost function of the user's own."""
    return next((frame for frame in stack.frames if not _is_library(frame)), None)


def _elsewhere(stacks: Mapping[int, Stack]) -> list[int]:
    """Ranks in another line than most."""
    lines = {rank: _own(stack) or stack.frames[0] for rank, stack in stacks.items()}
    most, count = Counter(lines.values()).most_common(1)[0]
    return [rank for rank in sorted(lines) if lines[rank] != most] if 2 * count > len(lines) else []


def _at(frame: StackFrame) -> str:
    return f"{frame.function} ({frame.file}:{frame.line})"


def _nothing(stacks: Mapping[int, Stack], waiting: Sequence[int]) -> str:
    if waiting:
        return f"Unknown: all {len(stacks)} ranks wait for others, and stacks do not tell which call they wait in."
    return f"Unknown: none of {len(stacks)} ranks waits in a collective."


def _finding(cause: Cause, odd: Sequence[int], stacks: Mapping[int, Stack], size: int) -> StuckFinding:
    """Ranks that wait for nobody, that wait elsewhere, or that left no stack."""
    waiting = tuple(rank for rank in sorted(stacks) if rank not in odd)
    there = stacks[waiting[0]]
    site, function, who, one = _own(there), _function(there), text.ranks(odd), len(odd) == 1
    by_place = defaultdict(list)
    for rank in odd:
        if rank in stacks:
            by_place[place(stacks[rank])].append(rank)
    places = "; ".join(
        f"{text.ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} in {where}"
        for where, ranks in list(by_place.items())[:_TOLD]
    )
    did = {
        "missing": f"{'is' if one else 'are'} in no collective",
        "wrong-order": f"wait{'s' if one else ''} at another place",
        "no-dump": "left no stack",
    }[cause]
    title = (
        f"{who[0].upper()}{who[1:]} {did}, while {text.ranks(waiting)} wait{'s' * (len(waiting) == 1)} in {function}."
    )
    seen = f"By their Python stacks, {places}. " if places else ""
    return StuckFinding(
        id=f"{cause}:1",
        cause=cause,
        severity="critical",
        confidence="medium",
        ranks=tuple(odd),
        hosts=tuple(dict.fromkeys(stacks[rank].host for rank in odd if rank in stacks and stacks[rank].host)),
        title=title,
        why=f"{seen}{text.ranks(waiting[:1]).capitalize()} waits in {place(there)}.",
        fix=text.advice(cause, odd),
        fix_parts=FixParts.of(text.advice(cause, odd)),
        call=StuckCall(
            kind=function,
            backend="",
            group="",
            description="",
            ranks=tuple(range(size)),
            sequence=-1,
            input_sizes=(),
            output_sizes=(),
            dtypes=(),
            site=CallSite(site.file, site.line, site.function) if site else None,
            timeout_s=None,
        ),
        states=tuple(
            RankState(rank, stacks[rank].host if rank in stacks else "", _came(rank, odd, stacks), None, None)
            for rank in range(size)
        ),
        waiting=waiting,
        since_ns=None,
        waited_at_most_s=None,
    )


def _function(stack: Stack) -> str:
    """The call that a rank waits in, by the name that the user called: "all_reduce"."""
    inner = list(takewhile(_is_library, stack.frames))
    named = [frame.function for frame in inner if _WRAPPED.search(frame.file)]
    return (named or [stack.frames[0].function])[-1]


def _came(rank: int, odd: Sequence[int], stacks: Mapping[int, Stack]) -> str:
    if rank not in stacks:
        return "no dump"
    return "absent" if rank in odd else "enqueued"
