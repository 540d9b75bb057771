"""Traces drawn as text: one character is one millisecond, one line a lane of one rank.

    rank0 step  |2                  |3
          host  [fwd][bwd]          [fwd][bwd]
          gpu    [fwd....][bwd....]  [fwd....][bwd....]
          nccl                 [ar]                [ar]

`|N` starts ProfilerStep N; the last one ends with the drawing. `[name....]` is an event from its first to its last
character. Lanes:

- host: operators of the training thread. `load` is a DataLoader in the training process, `fetch` one with workers,
  `sync` a stream synchronisation, `alloc` a cudaMalloc.
- autograd: backward's thread; its operators are autograd nodes.
- gpu: kernels of the compute stream. `pageable` and `pinned` are copies from the host of 16 MB. `name*20` are twenty
  kernels in a row, `name@64` has a grid of 64 blocks.
- nccl: AllReduces (`ar`...), all-gathers (`ag`...), sends and receives (`p2p`...) of the communication stream.
- gloo: AllReduces of the CPU, on a thread of their own.

A device event is launched by the host or autograd event of the same name (the n-th by the n-th), at its start; without
one, by a call at the start of the step that was last started on the host; with a leading `?`, by a call that the trace
does not hold.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.findings import Finding, RuleOutcome
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules.base import run
from tb_ddp_doctor.trace.model import RankTrace
from tb_ddp_doctor.trace.reader import decode

_LINE = re.compile(r"^\s*(?:rank(?P<rank>\d+)\s+)?(?P<lane>step|host|autograd|gpu|nccl|gloo)\s(?P<drawing>.*)$")
_BLOCK = re.compile(r"\[(?P<unrecorded>\??)(?P<name>[a-z0-9_]+)(\*(?P<times>\d+))?(@(?P<grid>\d+))?[ .]*\]")
_MS = 1_000_000
_COPIES = {"pageable": "Memcpy HtoD (Pageable -> Device)", "pinned": "Memcpy HtoD (Pinned -> Device)"}
_COLLECTIVES = {"ar": ("allreduce", "AllReduce"), "ag": ("_allgather_base", "AllGather"), "p2p": ("send", "SendRecv")}
_MAIN, _AUTOGRAD, _GLOO = 1, 2, 3
_COMPUTE_STREAM, _COMM_STREAM = 7, 16


@dataclass(frozen=True)
class Block:
    """One drawn event; ns from the drawing's left edge."""

    name: str
    start_ns: int
    end_ns: int
    times: int = 1
    grid: int = 128
    launched: bool = True


def draw(
    text: str,
    *,
    world_size: int | None = None,
    clock_ms: Mapping[int, float] | None = None,
    elements: int = 1_000_000,
) -> dict[int, bytes]:
    """The JSON of each drawn rank. `clock_ms` says by how much a rank's clock is ahead."""
    lanes = _lanes(text)
    size = world_size or max(lanes) + 1
    return {
        rank: _trace(rank, size, drawn, round((clock_ms or {}).get(rank, 0.0) * _MS), elements)
        for rank, drawn in lanes.items()
    }


def write(folder: Path, text: str, **options: Any) -> Path:
    """Write the drawn ranks as torch would, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, data in draw(text, **options).items():
        (folder / f"host{rank}_{100 + rank}.1700000000000000000.pt.trace.json").write_bytes(data)
    return folder


def read(text: str, **options: Any) -> dict[int, RankTrace]:
    """The drawn ranks, read."""
    return {rank: decode([data], f"rank{rank}.json") for rank, data in draw(text, **options).items()}


def digests(text: str, **options: Any) -> dict[int, RankDigest]:
    """The drawn ranks, digested."""
    return {rank: digest(trace) for rank, trace in read(text, **options).items()}


def job(text: str, **options: Any) -> Job:
    """The drawn job; every rank is a node of its own."""
    ranks = digests(text, **options)
    return build("drawn", ranks, {rank: f"host{rank}" for rank in ranks}, next(iter(ranks.values())).header.world_size)


def check(rule: str, text: str, *, settings: Mapping[str, float] | None = None, **options: Any) -> Finding | RuleOutcome:
    """One rule on the drawn job: its finding, or else how it ended."""
    import dataclasses

    configured = dataclasses.replace(CATALOGUE[rule], **(settings or {}))
    outcome, finding = run(configured, job(text, **options))
    return finding or outcome


def _lanes(text: str) -> dict[int, dict[str, tuple[int, str]]]:
    """By rank and lane: the column in which the drawing starts, and the drawing."""
    lanes: defaultdict[int, dict[str, tuple[int, str]]] = defaultdict(dict)
    rank = 0
    for line in text.splitlines():
        if not line.strip():
            continue
        found = _LINE.match(line)
        assert found, f"not a lane: {line!r}"
        rank = int(found["rank"]) if found["rank"] else rank
        lanes[rank][found["lane"]] = (found.start("drawing"), found["drawing"])
    return dict(lanes)


def _blocks(lane: tuple[int, str], origin: int) -> list[Block]:
    column, drawing = lane
    shift = column - origin
    assert not re.sub(_BLOCK, "", drawing).strip(), f"not drawn well: {drawing!r}"
    return [
        Block(
            found["name"],
            (found.start() + shift) * _MS,
            (found.end() + shift) * _MS,
            int(found["times"] or 1),
            int(found["grid"] or 128),
            not found["unrecorded"],
        )
        for found in _BLOCK.finditer(drawing)
    ]


class _Events:
    """Collects events of one rank's trace, in Kineto's words."""

    def __init__(self, rank: int, shift_ns: int) -> None:
        self.list: list[dict[str, Any]] = []
        self._pid = 100 + rank
        self._shift_ns = shift_ns
        self._correlation = 0

    def add(self, category: str, name: str, start_ns: int, end_ns: int, tid: int, **args: Any) -> None:
        device = "stream" in args
        self.list.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 0 if device else self._pid,
                "tid": args["stream"] if device else tid,
                "ts": (start_ns + self._shift_ns) / 1000 + 1e6,
                "dur": (end_ns - start_ns) / 1000,
                "args": args,
            }
        )

    def launch(self, call: str, at_ns: int, tid: int, length_ns: int = 1000) -> int:
        """A runtime call; returns its correlation."""
        self._correlation += 1
        self.add("cuda_runtime", call, at_ns, at_ns + length_ns, tid, correlation=self._correlation)
        return self._correlation

    def unrecorded(self) -> int:
        self._correlation += 1
        return self._correlation


def _trace(rank: int, world_size: int, lanes: Mapping[str, tuple[int, str]], shift_ns: int, elements: int) -> bytes:
    origin = min(column for column, _ in lanes.values())
    width = max(column + len(drawing.rstrip()) for column, drawing in lanes.values()) - origin
    events = _Events(rank, shift_ns)
    steps = list(_steps(lanes.get("step"), origin, width))
    for number, start, end in steps:
        events.add("user_annotation", f"ProfilerStep#{number}", start, end, _MAIN)
    host = _blocks(lanes["host"], origin) if "host" in lanes else []
    autograd = _blocks(lanes["autograd"], origin) if "autograd" in lanes else []
    _add_host(events, host)
    for block in autograd:
        events.add("cpu_op", f"autograd::engine::evaluate_function: {block.name}", block.start_ns, block.end_ns, _AUTOGRAD)
    callers: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for tid, blocks in ((_MAIN, host), (_AUTOGRAD, autograd)):
        for block in blocks:
            callers[block.name].append((block.start_ns, tid))

    def caller(block: Block) -> tuple[int, int]:
        if callers[block.name]:
            return callers[block.name].pop(0)
        return max((start for _, start, _ in steps if start <= block.start_ns), default=block.start_ns), _MAIN

    for block in _blocks(lanes["gpu"], origin) if "gpu" in lanes else []:
        _add_compute(events, block, *caller(block))
    for block in _blocks(lanes["nccl"], origin) if "nccl" in lanes else []:
        _add_collective(events, block, *caller(block), world_size, elements)
    for block in _blocks(lanes["gloo"], origin) if "gloo" in lanes else []:
        events.add("user_annotation", "gloo:all_reduce", block.start_ns, block.end_ns, _GLOO)
    return msgspec.json.encode(
        {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "Drawn GPU"}] if "gpu" in lanes else [],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size},
            "baseTimeNanoseconds": 1_700_000_000_000_000_000,
            "traceEvents": events.list,
        }
    )


def _steps(lane: tuple[int, str] | None, origin: int, width: int) -> Iterator[tuple[int, int, int]]:
    if lane is None:
        return
    column, drawing = lane
    marks = list(re.finditer(r"\|(\d+)", drawing))
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        end = following.start() + column - origin if following else width
        yield int(mark[1]), (mark.start() + column - origin) * _MS, end * _MS


def _add_host(events: _Events, blocks: list[Block]) -> None:
    for block in blocks:
        start, end = block.start_ns, block.end_ns
        match block.name:
            case "load":
                name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
                events.add("user_annotation", name, start, end, _MAIN)
            case "fetch":
                name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
                events.add("user_annotation", name, start, end, _MAIN)
            case "sync":
                events.launch("cudaStreamSynchronize", start, _MAIN, end - start)
            case "alloc":
                events.launch("cudaMalloc", start, _MAIN, end - start)
            case name:
                events.add("cpu_op", f"aten::{name}", start, end, _MAIN)


def _add_compute(events: _Events, block: Block, at_ns: int, tid: int) -> None:
    length = (block.end_ns - block.start_ns) // block.times
    for i in range(block.times):
        start = block.start_ns + i * length
        place: dict[str, Any] = {"device": 0, "stream": _COMPUTE_STREAM}
        if block.name in _COPIES:
            blocking = length if block.name == "pageable" else 1000
            place["correlation"] = events.launch("cudaMemcpyAsync", at_ns, tid, blocking)
            events.add("gpu_memcpy", _COPIES[block.name], start, start + length, 0, bytes=16_000_000, **place)
            continue
        place["correlation"] = events.launch("cudaLaunchKernel", at_ns, tid) if block.launched else events.unrecorded()
        events.add("kernel", f"{block.name}_kernel", start, start + length, 0, grid=[block.grid, 1, 1], **place)


def _add_collective(events: _Events, block: Block, at_ns: int, tid: int, world_size: int, elements: int) -> None:
    prefix = next(prefix for prefix in _COLLECTIVES if block.name.startswith(prefix))
    collective, kernel = _COLLECTIVES[prefix]
    correlation = events.unrecorded()
    if block.launched:
        events.add(
            "cpu_op",
            "record_param_comms",
            at_ns,
            at_ns + 10_000,
            tid,
            **{
                "Collective name": collective,
                "Process Group Name": "0",
                "Process Group Ranks": str(list(range(world_size))),
                "Group size": world_size,
                "In msg nelems": elements,
                "Out msg nelems": elements,
                "dtype": "Float",
            },
        )
        correlation = events.launch("cudaLaunchKernelExC", at_ns + 5_000, tid)
    name = f"ncclDevKernel_{kernel}_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    events.add(
        "kernel", name, block.start_ns, block.end_ns, 0, device=0, stream=_COMM_STREAM, correlation=correlation
    )
