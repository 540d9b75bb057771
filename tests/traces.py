"""Traces drawn as text: one character is one millisecond, one line a lane of one rank.

    rank0 step  |2                  |3
          host  [fwd][bwd]          [fwd][bwd]
          gpu    [fwd....][bwd....]  [fwd....][bwd....]
          nccl                 [ar]                [ar]

`|N` starts ProfilerStep N; the last one ends with the drawing. `[name....]` is an event from its first to its last
character. Lanes:

- host: operators of the training thread. `load` is a DataLoader in the training process, `fetch` one with workers,
  `sync` a stream synchronisation, `item` one that reads a value, `alloc` a cudaMalloc, `free` a cudaFree, `full` a call
  that waits for a place in the launch queue, `flush` one held by the profiler, `update` an optimizer's step, `zero` its
  zero_grad, `capture` the capture of a CUDA graph, `ddp` DDP's forward, `walk` DDP's search for unused parameters,
  `own_...` an annotation of the user's, "## ... ##". `optim` and `multi_tensor_apply` are operators in an optimizer's
  step, `scores`, `scale`, `softmax`, `values` and `undo` (the softmax backward) operations of attention, with shapes.
- within: the same, within those of the lane host. thread2, thread3, ...: operators of other threads.
- autograd: backward's thread; its operators are autograd nodes, `checkpoint` that of a reentrant one. `grad@2`
  completes a gradient of 2 million elements.
- again: operators of forward within those of autograd, as a checkpoint calls them.
- gpu: kernels of the compute stream. `pageable` and `pinned` are copies from the host of 16 MB, `offload` one to it.
  `name*20` are twenty kernels in a row, `name@64` has a grid of 64 blocks. `graph*20` are twenty of one CUDA graph,
  launched by one call.
- gpu2, gpu3, ...: the same, each on a stream of its own; copy: one for copies.
- nccl: AllReduces (`ar`..., of int32 `used`...), all-gathers (`ag`...), reduce-scatters (`rs`...), broadcasts
  (`bc`...), all-to-alls (`a2a`...), sends and receives (`p2p`...; `s2` to rank 2, `r0` from rank 0, `s2r0` a batch of
  both) of the communication stream. `ar/tp` is of
  the process group "tp": the ranks that draw one; other groups are all ranks. `ar@8` moves 8 million elements,
  `ar@0` one element.
- comm, comm2: the same, on a second and a third communication stream.
- gloo: AllReduces of the CPU, on a thread of their own.
- python: functions of the training thread, as `_FUNCTIONS` names them; inner: those that they call.
- memory: `[30of40]` is an allocation or release after which 30 GB of the device's memory are allocated, and 40
  reserved; it releases the last block of its size, or the one with its name, as in `[30of40a]`.

A device event is launched by the host or autograd event of the same name (the n-th by the n-th), at its start; without
one, by a call as soon as the host has done what is drawn before: at the start of the step that was last started on the
host, or at the end of its last event; with a leading `?`, by a call that the trace does not hold.
"""

from __future__ import annotations

import dataclasses
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tb_ddp_doctor.account.savings import Savings
from tb_ddp_doctor.calibration.model import Calibration
from tb_ddp_doctor.digest import native
from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.digest.model import RankDigest
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.without_faults import whatif
from tb_ddp_doctor.findings import Evidence, Finding, RuleOutcome
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules.support.base import run
from tb_ddp_doctor.trace import reader
from tb_ddp_doctor.trace.model import Events, RankTrace
from tb_ddp_doctor.trace.reader import decode

_LINE = re.compile(
    r"^\s*(?:rank(?P<rank>\d+)\s+)?(?P<lane>step|host|within|thread\d+|autograd|again|gpu\d*|copy|nccl|comm2?|gloo|python|inner|memory)\s(?P<drawing>.*)$"
)
_BLOCK = re.compile(
    r"\[(?P<unrecorded>\??)(?P<name>[a-z0-9_]+)(/(?P<group>\w+))?(\*(?P<times>\d+))?(@(?P<size>\d+))?[ .]*\]"
)
_MESSAGE = re.compile(r"([sr])(\d+)")
_MESSAGES = re.compile(r"([sr]\d+)+")
MS = 1_000_000
GB = 1_000_000_000
#: Ranks that begin their step 12 ms apart, the late one with work of the step before it.
BEGINS_EARLY = """
    rank# step |1
          gpu  [?b][fwd....][bwd.]
          nccl                    [ar....................]
"""
BEGINS_LATE = """
    rank# step |1
          gpu  [?before.......][fwd....][bwd.]
          nccl                                [ar........]
"""
_COPIES = {
    "pageable": "Memcpy HtoD (Pageable -> Device)",
    "pinned": "Memcpy HtoD (Pinned -> Device)",
    "hostcopy": "Memcpy HtoD (Host -> Device)",  # ROCm
    "offload": "Memcpy DtoH (Device -> Pinned)",
}
_COLLECTIVES = {
    "ar": ("allreduce", "AllReduce_Sum_f32"),
    "ag": ("_allgather_base", "AllGather"),
    "rs": ("_reduce_scatter_base", "ReduceScatter_Sum_f32"),
    "bc": ("broadcast", "Broadcast"),
    "used": ("allreduce", "AllReduce_Sum_u32"),
    "p2p": ("send", "SendRecv"),
    "a2a": ("all_to_allv", "SendRecv"),
}
_ANNOTATIONS = {
    "load": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "fetch": "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
    "update": "Optimizer.step#AdamW.step",
    "note": "write_checkpoint",
    "zero": "Optimizer.zero_grad#AdamW.zero_grad",
    "ddp": "DistributedDataParallel.forward",
}
_FUNCTIONS = {
    "step": "train.py(4): step",
    "report": "tools/report.py(12): report",
    "call": "torch/nn/modules/module.py(1775): _call_impl",
    "block": "nn.Module: Block_3",
    "block1": "nn.Module: Block_1",
    "block2": "nn.Module: Block_2",
    "denoise": "nn.Module: FluxTransformer2DModel_0",
    "encode": "nn.Module: T5EncoderModel_0",
    "decode": "nn.Module: Decoder_0",
    "gc": "<built-in function collect>",
    "nap": "<built-in function sleep>",
    "save": "torch/serialization.py(944): save",
    "emit": "logging/__init__.py(1080): emit",
    "plan": "vllm/v1/core/sched/scheduler.py(240): schedule",
    "draw": "vllm/v1/sample/sampler.py(68): forward",
    "own_draw": "train/sampler.py(12): schedule",
}
_CALLS = {
    "sync": "cudaStreamSynchronize",
    "alloc": "cudaMalloc",
    "free": "cudaFree",
    "capture": "cudaStreamBeginCapture",
}
#: Operator and shapes: two samples, four heads, 64 queries of 16 values.
_ATTENTION: dict[str, tuple[str, list[list[int]]]] = {
    "scores": ("aten::bmm", [[8, 64, 16], [8, 16, 64]]),
    "scale": ("aten::mul", [[2, 4, 64, 64], []]),
    "softmax": ("aten::_softmax", [[2, 4, 64, 64], [], []]),
    "undo": ("aten::_softmax_backward_data", [[2, 4, 64, 64], [2, 4, 64, 64], [], []]),
    "values": ("aten::bmm", [[8, 64, 64], [8, 64, 16]]),
    "_scaled_dot_product_attention_math": ("aten::_scaled_dot_product_attention_math", [[2, 4, 64, 16]] * 3),
}
_MAIN, _AUTOGRAD, _GLOO = 1, 2, 3
#: Threads and streams by number come after these.
_MORE = 100
#: From one call without a drawn caller to the next.
_CALL_NS = 20_000
_COMPUTE_STREAM, _COPY_STREAM, _COMM_STREAM = 7, 8, 16


@dataclass(frozen=True)
class Block:
    """One drawn event; ns from the drawing's left edge."""

    name: str
    start_ns: int
    end_ns: int
    times: int = 1
    #: Blocks of a kernel's grid, millions of elements of a collective.
    size: int | None = None
    group: str = ""
    launched: bool = True


@dataclass(frozen=True)
class Options:
    """How the drawn job was traced."""

    world_size: int | None = None
    #: By how much a rank's clock is ahead.
    clock_ms: Mapping[int, float] = field(default_factory=dict)
    #: Where collectives say what they are: on the "host" (`record_param_comms`), on the "kernel", or "nowhere".
    metadata: str = "host"
    #: Whether the metadata has sequence numbers.
    sequence: bool = False
    #: Process of a rank, where it is not 100 and the rank.
    pids: Mapping[int, str] = field(default_factory=dict)
    #: By how much each step's annotation reaches into the next one.
    step_overrun_ns: int = 0
    #: Length of the last step, where it is not up to the drawing's end.
    last_step_ms: int | None = None
    #: The raw JSON of every kernel's grid, where it is not to be what is drawn.
    grid: str | None = None
    #: Whether shapes were recorded.
    shapes: bool = True
    #: What the device has of memory.
    device_gb: int | None = None
    #: What is allocated of it before the trace.
    allocated_gb: int = 0
    #: How many values a head of attention is wide.
    head: int = 16
    #: The estimated occupancy of kernels by the name that is drawn, percent.
    occupancy: Mapping[str, int] = field(default_factory=dict)
    #: Shapes of the inputs of operators by the name that is drawn, which then are `aten::` ones of that name.
    dims: Mapping[str, list[Any]] = field(default_factory=dict)
    #: Types of the same inputs.
    types: Mapping[str, list[str]] = field(default_factory=dict)
    #: Names of the trace in place of those that are drawn, as {"aten::region": "Torch-Compiled Region: 0/0"}.
    names: Mapping[str, str] = field(default_factory=dict)
    #: Names of kernels by the name that is drawn, where they are not that name and "_kernel".
    kernels: Mapping[str, str] = field(default_factory=dict)
    #: Whether a CUDA graph launches all kernels that are launched between the starts of two annotations.
    captured: bool = False
    #: What the trace says of its device.
    device: Mapping[str, Any] = field(default_factory=lambda: {"name": "Drawn GPU", "computeMajor": 9})

    @property
    def inputs(self) -> dict[str, Mapping[str, Any]]:
        """What operators are given, by the trace's keys and the name that is drawn."""
        return {"Input Dims": self.dims, "Input type": self.types}


def repeat(text: str, times: int) -> str:
    """The drawing so many times in a row."""
    return in_row(*[text] * times)


def in_row(*texts: str) -> str:
    """One drawing after the other, with the numbers of their steps counted up."""
    rows: defaultdict[tuple[int, str], str] = defaultdict(str)
    shift, counted = 0, 0
    for text in texts:
        lanes, width = _lanes(text)
        for rank, drawn in lanes.items():
            for lane, drawing in drawn.items():
                rows[rank, lane] = rows[rank, lane].ljust(shift) + _count_up(drawing, counted)[:width]
        shift += width
        counted += max(drawn.get("step", "").count("|") for drawn in lanes.values())
    return "\n".join(f"rank{rank} {lane:<8} {drawing.ljust(shift)}" for (rank, lane), drawing in rows.items())


def boxes(*each: tuple[int, int, str]) -> str:
    """A lane in which each name goes from one ms to another."""
    line = ""
    for begin, end, name in each:
        line = f"{line.ljust(begin)}[{name.ljust(end - begin - 2, '.')}]"
    return line


def ranks(*drawings: str, steps: int = 3) -> str:
    """A job of ranks that look so, each drawn as `rank#`, in so many steps."""
    return repeat("".join(drawing.replace("#", str(rank)) for rank, drawing in enumerate(drawings)), steps)


def _count_up(drawing: str, by: int) -> str:
    return re.sub(r"(?<=\|)\d+", lambda number: str(int(number[0]) + by), drawing)


def draw(text: str, **options: Any) -> dict[int, bytes]:
    """The JSON of each drawn rank; `options` are those of `Options`."""
    (lanes, width), traced = _lanes(text), Options(**options)
    size = traced.world_size or max(lanes) + 1
    groups = defaultdict(list)
    for rank, drawn in lanes.items():
        for group in set(re.findall(r"\[\??\w+/(\w+)", "".join(drawn.values()))):
            groups[group].append(rank)
    groups["0"] = list(range(size))
    data = {
        rank: _renamed(_trace(rank, size, drawn, width, groups, traced), traced.names) for rank, drawn in lanes.items()
    }
    return {rank: _captured(each) for rank, each in data.items()} if traced.captured else data


def _captured(data: bytes) -> bytes:
    """The trace with one cudaGraphLaunch for all kernels that are launched between the starts of two annotations."""
    trace = msgspec.json.decode(data)
    events = trace["traceEvents"]
    launches = [event for event in events if event["name"].startswith("cudaLaunchKernel")]
    launches.sort(key=lambda event: event["ts"])
    starts = sorted(event["ts"] for event in events if event.get("cat") == "user_annotation")
    of_graph: dict[int, Any] = {}
    graph = {
        launch["args"]["correlation"]: of_graph.setdefault(bisect_right(starts, launch["ts"]), launch)
        for launch in launches
    }
    for event in events:
        if event.get("cat") == "kernel":
            event["args"]["correlation"] = graph[event["args"]["correlation"]]["args"]["correlation"]
    for launch in of_graph.values():
        launch["name"] = "cudaGraphLaunch"
    trace["traceEvents"] = [event for event in events if not event["name"].startswith("cudaLaunchKernel")]
    return msgspec.json.encode(trace)


def _renamed(data: bytes, names: Mapping[str, str]) -> bytes:
    for drawn, name in names.items():
        data = data.replace(msgspec.json.encode(drawn), msgspec.json.encode(name))
    return data


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
    code = reader.name(), native.library()
    digested = _digested if KEPT[0] else _digested.__wrapped__
    return {rank: digested(f"rank{rank}.json", data, code) for rank, data in draw(text, **options).items()}


#: Whether digests are kept: conftest.py says no where a test patches what they may depend on.
KEPT = [True]


@lru_cache(maxsize=512)
def _digested(file: str, data: bytes, code: tuple[object, ...]) -> RankDigest:
    """A trace's digest by the code that tests choose between; those of one file draw the same ranks again and again.

    Columns are read-only, as those of a digest that the cache has kept are.
    """
    found = digest(decode([data], file))
    _protect(found)
    return found


def _protect(value: object) -> None:
    if isinstance(value, np.ndarray):
        value.setflags(write=False)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            _protect(getattr(value, name))


def job(
    text: str, *, nodes: Mapping[int, str] | None = None, calibration: Calibration | None = None, **options: Any
) -> Job:
    """The drawn job; every rank is a node of its own, unless `nodes` says otherwise."""
    ranks = digests(text, **options)
    named = {rank: f"host{rank}" for rank in ranks} | dict(nodes or {})
    built = build("drawn", ranks, named, next(iter(ranks.values())).header.world_size)
    return msgspec.structs.replace(built, calibration=calibration)


def alike(text: str, size: int) -> Job:
    """The job of so many ranks that all look as the drawn rank 0 does, which is digested once."""
    drawn = digests(text, world_size=size)[0]
    ranks = {
        rank: msgspec.structs.replace(
            drawn,
            file=f"rank{rank}.json",
            pid=str(100 + rank),
            header=msgspec.structs.replace(drawn.header, rank=rank),
        )
        for rank in range(size)
    }
    return build("drawn", ranks, {rank: f"host{rank}" for rank in ranks}, size)


def check(
    rule: str, text: str, *, settings: Mapping[str, float] | None = None, **options: Any
) -> Finding | RuleOutcome:
    """One rule on the drawn job: its only finding, or else how it ended."""
    found = findings(rule, text, settings=settings, **options)
    if isinstance(found, RuleOutcome):
        return found
    assert len(found) == 1, found
    return found[0]


def findings(
    rule: str, text: str, *, settings: Mapping[str, float] | None = None, **options: Any
) -> tuple[Finding, ...] | RuleOutcome:
    """One rule on the drawn job: all its findings, or else how it ended."""
    facts = Facts(job(text, **options))
    ended, found = run(dataclasses.replace(CATALOGUE[rule], **(settings or {})), facts)
    if found and found.rule.is_opportunity:
        return Savings([], facts.get(whatif), facts.job, [found]).opportunities
    return Savings([found], facts.get(whatif), facts.job).findings if found else ended


def finding(rule: str, text: str, **options: Any) -> Finding:
    """What the rule finds in the drawn job."""
    result = check(rule, text, **options)
    assert isinstance(result, Finding), result
    return result


def outcome(rule: str, text: str, **options: Any) -> RuleOutcome:
    """How the rule ends where it finds nothing."""
    result = check(rule, text, **options)
    assert isinstance(result, RuleOutcome), result
    return result


def step_ms(text: str, **options: Any) -> float:
    """Mean step of the drawn job."""
    return job(text, **options).step_ns / MS


def lies_in_its_step(window: Evidence, text: str, **options: Any) -> bool:
    """Whether a window of evidence lies in the step of the rank that it names."""
    drawn = job(text, **options)
    rank, step = drawn.ranks.tolist().index(window.rank), drawn.steps.tolist().index(window.step)
    start = int(drawn.budget.start_ns[rank, step])
    return start <= window.start_ns < window.end_ns <= start + int(drawn.budget.window_ns[rank, step])


def _lanes(text: str) -> tuple[dict[int, dict[str, str]], int]:
    """Drawings by rank and lane, all from the left edge of the first thing drawn; and their width."""
    found = []
    rank = 0
    for line in filter(str.strip, text.splitlines()):
        lane = _LINE.match(line)
        assert lane, f"not a lane: {line!r}"
        rank = int(lane["rank"]) if lane["rank"] else rank
        found.append((rank, lane["lane"], " " * lane.start("drawing") + lane["drawing"].rstrip()))
    origin = min(len(drawing) - len(drawing.lstrip()) for _, _, drawing in found)
    lanes: defaultdict[int, dict[str, str]] = defaultdict(dict)
    for rank, name, drawing in found:
        lanes[rank][name] = drawing[origin:]
    return dict(lanes), max(len(drawing) for _, _, drawing in found) - origin


def _blocks(drawing: str) -> list[Block]:
    assert not re.sub(_BLOCK, "", drawing).strip(), f"not drawn well: {drawing!r}"
    return [
        Block(
            found["name"],
            found.start() * MS,
            found.end() * MS,
            int(found["times"] or 1),
            int(found["size"]) if found["size"] else None,
            found["group"] or "0",
            not found["unrecorded"],
        )
        for found in _BLOCK.finditer(drawing)
    ]


class _Events:
    """Collects events of one rank's trace, in Kineto's words."""

    def __init__(self, pid: int | str, shift_ns: int) -> None:
        self.list: list[dict[str, Any]] = []
        self._pid = pid
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

    def add_instant(self, name: str, at_ns: int, tid: int, **args: Any) -> None:
        """An event without a duration."""
        self.add("cpu_instant_event", name, at_ns, at_ns, tid, **args)
        self.list[-1]["ph"] = "i"
        del self.list[-1]["dur"]

    def launch(self, call: str, at_ns: int, tid: int, length_ns: int = 1000) -> int:
        """A runtime call; returns its correlation."""
        self._correlation += 1
        self.add("cuda_runtime", call, at_ns, at_ns + length_ns, tid, correlation=self._correlation)
        return self._correlation

    def unrecorded(self) -> int:
        self._correlation += 1
        return self._correlation

    def numbered_in_turn(self) -> list[dict[str, Any]]:
        """The events; calls of the runtime have numbers that rise with time, as a driver's do."""
        calls = [event for event in self.list if event["cat"] == "cuda_runtime" and "correlation" in event["args"]]
        in_turn = [event["args"]["correlation"] for event in sorted(calls, key=lambda event: event["ts"])]
        unrecorded = sorted({*range(1, self._correlation + 1)} - {*in_turn})
        turn = {number: i + 1 for i, number in enumerate([*in_turn, *unrecorded])}
        for event in self.list:
            if "correlation" in event["args"]:
                event["args"]["correlation"] = turn[event["args"]["correlation"]]
        return self.list


class _Callers:
    """Finds the call that launches a device event."""

    def __init__(self, steps: list[tuple[int, int, int]], by_thread: Mapping[int, list[Block]]) -> None:
        free = [block.end_ns for blocks in by_thread.values() for block in blocks]
        self._free = [start for _, start, _ in steps] + free
        self._drawn: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for tid, blocks in by_thread.items():
            for block in blocks:
                self._drawn[block.name].append((block.start_ns, tid))
        self._queued = Counter[int]()

    def of(self, block: Block) -> tuple[int, int]:
        """Time and thread of the call."""
        if self._drawn[block.name]:
            return self._drawn[block.name].pop(0)
        start = max((free for free in self._free if free <= block.start_ns), default=block.start_ns)
        self._queued[start] += 1
        return start + (self._queued[start] - 1) * _CALL_NS, _MAIN


def _trace(
    rank: int, world_size: int, lanes: Mapping[str, str], width: int, groups: Mapping[str, list[int]], options: Options
) -> bytes:
    blocks = defaultdict(list, {lane: _blocks(drawing) for lane, drawing in lanes.items() if lane != "step"})
    blocks["host"] += blocks["within"]
    steps = list(_steps(lanes.get("step", ""), width, options))
    threads = {_MORE + number: drawn for number, drawn in _numbered(blocks, "thread")}
    callers = _Callers(steps, {_MAIN: blocks["host"], _AUTOGRAD: blocks["autograd"] + blocks["again"], **threads})
    events = _Events(options.pids.get(rank, 100 + rank), round(options.clock_ms.get(rank, 0.0) * MS))
    for number, start, end in steps:
        events.add("user_annotation", f"ProfilerStep#{number}", start, end, _MAIN)
    _add_host(events, blocks["host"], options)
    _add_autograd(events, blocks["autograd"], options)
    for tid, drawn in [*threads.items(), (_AUTOGRAD, blocks["again"])]:
        for block in drawn:
            events.add("cpu_op", f"aten::{block.name}", block.start_ns, block.end_ns, tid)
    more = {_MORE + number: drawn for number, drawn in _numbered(blocks, "gpu")}
    for stream, drawn in {_COMPUTE_STREAM: blocks["gpu"], _COPY_STREAM: blocks["copy"], **more}.items():
        for block in drawn:
            _add_compute(events, block, stream, *callers.of(block), options)
    calls = Counter[str]()
    for stream, lane in ((_COMM_STREAM, "nccl"), (_COMM_STREAM + 1, "comm"), (_COMM_STREAM + 2, "comm2")):
        for block in blocks[lane]:
            calls[block.group] += 1
            about = _about(block, groups[block.group], calls[block.group] if options.sequence else None)
            _add_collective(events, block, stream, *callers.of(block), about, options.metadata)
    for block in blocks["gloo"]:
        events.add("user_annotation", "gloo:all_reduce", block.start_ns, block.end_ns, _GLOO)
    for block in blocks["python"] + blocks["inner"]:
        events.add("python_function", _FUNCTIONS[block.name], block.start_ns, block.end_ns, _MAIN)
    _add_memory(events, blocks["memory"], options)
    device = {"id": 0, **options.device, "totalGlobalMem": (options.device_gb or 0) * GB}
    return msgspec.json.encode(
        {
            "schemaVersion": 1,
            "record_shapes": int(options.shapes),
            "deviceProperties": [device] if "gpu" in lanes else [],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size},
            "baseTimeNanoseconds": 1_700_000_000_000_000_000,
            "traceEvents": events.numbered_in_turn(),
        }
    )


def _numbered(blocks: Mapping[str, list[Block]], lane: str) -> Iterator[tuple[int, list[Block]]]:
    """The lanes of a name with a number, and the number."""
    for name, drawn in blocks.items():
        if found := re.fullmatch(rf"{lane}(\d+)", name):
            yield int(found[1]), drawn


def _steps(drawing: str, width: int, options: Options) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each drawn step."""
    marks = list(re.finditer(r"\|(\d+)", drawing))
    for mark, following in zip_longest(marks, marks[1:]):
        last = mark.start() + options.last_step_ms if options.last_step_ms else width
        end = following.start() if following else last
        yield int(mark[1]), mark.start() * MS, end * MS + options.step_overrun_ns


def _add_host(events: _Events, blocks: list[Block], options: Options) -> None:
    for block in blocks:
        start, end = block.start_ns, block.end_ns
        match block.name:
            case name if name in _ANNOTATIONS:
                events.add("user_annotation", _ANNOTATIONS[name], start, end, _MAIN)
            case name if name.startswith("own_"):
                events.add("user_annotation", f"## {name.removeprefix('own_')} ##", start, end, _MAIN)
            case name if name in _CALLS:
                _add_call(events, block)
            case "walk":
                events.add("cpu_op", "torch.distributed.ddp.reducer::search_unused_parameters", start, end, _MAIN)
            case "item":
                events.add("cpu_op", "aten::item", start, end, _MAIN)
                events.add("cpu_op", "aten::_local_scalar_dense", start + 1000, end - 1000, _MAIN)
                events.launch("cudaStreamSynchronize", start + 2000, _MAIN, end - start - 4000)
            case "full" | "flush":
                events.launch("cudaEventRecord", start, _MAIN, end - start)
                stall = "Command Buffer Full" if block.name == "full" else "Activity Buffer Request"
                events.add("overhead", stall, start, end, _MAIN)
            case name if name in _ATTENTION:
                _add_attention(events, block, _MAIN, options)
            case name:
                if name in ("optim", "multi_tensor_apply"):
                    events.add("user_annotation", "Optimizer.step#AdamW.step", start, end, _MAIN)
                shapes = {key: given[name] for key, given in options.inputs.items() if name in given}
                events.add("cpu_op", f"aten::{name}", start, end, _MAIN, **shapes)


def _add_call(events: _Events, block: Block) -> None:
    """A call of the runtime; a graph that is captured is made ready to be launched at its end."""
    if block.name != "capture":
        events.launch(_CALLS[block.name], block.start_ns, _MAIN, block.end_ns - block.start_ns)
        return
    events.launch(_CALLS[block.name], block.start_ns, _MAIN)
    events.launch("cudaStreamEndCapture", block.end_ns - 2 * _CALL_NS, _MAIN)
    events.launch("cudaGraphInstantiate", block.end_ns - _CALL_NS, _MAIN)


def _add_autograd(events: _Events, blocks: list[Block], options: Options) -> None:
    for block in blocks:
        if block.name.startswith("grad"):
            _add_gradient(events, block, options)
            continue
        node = "CheckpointFunctionBackward" if block.name == "checkpoint" else block.name
        name = f"autograd::engine::evaluate_function: {node}"
        events.add("cpu_op", name, block.start_ns, block.end_ns, _AUTOGRAD)
        if block.name in _ATTENTION:
            _add_attention(events, block, _AUTOGRAD, options)


def _add_gradient(events: _Events, block: Block, options: Options) -> None:
    """A node that adds to a gradient, in the first half of its time; DDP's hook has the second."""
    shapes = {"Input Dims": [[(block.size or 1) * 1_000_000]]} if options.shapes else {}
    name = "torch::autograd::AccumulateGrad"
    events.add("cpu_op", f"autograd::engine::evaluate_function: {name}", block.start_ns, block.end_ns, _AUTOGRAD)
    events.add("cpu_op", name, block.start_ns, (block.start_ns + block.end_ns) // 2, _AUTOGRAD, **shapes)


def _add_attention(events: _Events, block: Block, tid: int, options: Options) -> None:
    name, dims = _ATTENTION[block.name]
    dims = [[options.head if size == 16 else size for size in sizes] for sizes in dims]
    shapes = {"Input Dims": dims} if options.shapes else {}
    events.add("cpu_op", name, block.start_ns, block.end_ns, tid, **shapes)


def _add_compute(events: _Events, block: Block, stream: int, at_ns: int, tid: int, options: Options) -> None:
    length = (block.end_ns - block.start_ns) // block.times
    grid = msgspec.Raw(options.grid.encode()) if options.grid else [block.size or 128, 1, 1]
    graph = events.launch("cudaGraphLaunch", at_ns, tid) if block.name == "graph" else None
    for i in range(block.times):
        start = block.start_ns + i * length
        place: dict[str, Any] = {"device": 0, "stream": stream}
        if block.name in _COPIES:
            blocking = length if block.name == "pageable" else 1000
            place["correlation"] = events.launch("cudaMemcpyAsync", at_ns, tid, blocking)
            events.add("gpu_memcpy", _COPIES[block.name], start, start + length, 0, bytes=16_000_000, **place)
            continue
        if graph:
            place |= {"correlation": graph, "graph id": block.times, "graph node id": block.times << 32 | i}
        else:
            call = events.launch("cudaLaunchKernel", at_ns, tid) if block.launched else events.unrecorded()
            place["correlation"] = call
        if block.name in options.occupancy:
            place["est. achieved occupancy %"] = options.occupancy[block.name]
        kernel = options.kernels.get(block.name, f"{block.name}_kernel")
        events.add("kernel", kernel, start, start + length, 0, grid=grid, **place)


def _add_memory(events: _Events, blocks: list[Block], options: Options) -> None:
    before = options.allocated_gb * GB
    #: Address of each block by its name, and of those without by their size, the last one last.
    named: dict[str, int] = {}
    sized: dict[int, list[int]] = defaultdict(list)
    for number, block in enumerate(blocks, 1):
        used, held, name = re.fullmatch(r"(\d+)of(\d+)([a-z]?)", block.name).groups()  # type: ignore[union-attr]
        size = int(used) * GB - before
        same = sized[abs(size)]
        if size > 0:
            address = named[name] = number * 4096
            same += [] if name else [address]
        else:
            address = named.get(name, 0) if name else same.pop() if same else number * 4096
        args = {"Total Allocated": int(used) * GB, "Total Reserved": int(held) * GB, "Bytes": size, "Addr": address}
        events.add_instant("[memory]", block.start_ns, _MAIN, **args, **{"Device Id": 0, "Device Type": 1})
        before = int(used) * GB


def _about(block: Block, ranks: list[int], number: int | None) -> dict[str, Any]:
    """A collective's metadata."""
    elements = 1 if block.size == 0 else (block.size or 1) * 1_000_000
    about: dict[str, Any] = {
        "Collective name": _collective(block)[0],
        "Process Group Name": block.group,
        "Process Group Ranks": str(ranks),
        "Group size": len(ranks),
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "dtype": "Int" if block.name.startswith("used") else "Float",
    }
    if message := _MESSAGE.fullmatch(block.name):
        about["Dst Rank" if message[1] == "s" else "Src Rank"] = int(message[2])
    return about if number is None else about | {"Seq": number}


def _collective(block: Block) -> tuple[str, str]:
    """Names of a collective and of its kernel."""
    if _MESSAGES.fullmatch(block.name):
        return {"s": "send", "r": "recv"}[block.name[0]], "SendRecv"
    return next(names for prefix, names in _COLLECTIVES.items() if block.name.startswith(prefix))


def _add_collective(
    events: _Events, block: Block, stream: int, at_ns: int, tid: int, about: dict[str, Any], metadata: str
) -> None:
    correlation = events.unrecorded()
    batch = _MESSAGE.findall(block.name) if _MESSAGES.fullmatch(block.name) else []
    if len(batch) > 1:
        # Each is enqueued by itself, and one launch follows for all.
        for number, (way, peer) in enumerate(batch):
            told = about | {"Collective name": {"s": "send", "r": "recv"}[way]}
            told["Dst Rank" if way == "s" else "Src Rank"] = int(peer)
            at = at_ns + number * 1000
            events.add("cpu_op", "record_param_comms", at, at + 500, tid, **(told if metadata == "host" else {}))
        correlation = events.launch("cudaLaunchKernelExC", at_ns + 5_000, tid)
        about = {}
    elif block.launched:
        on_host = about if metadata == "host" else {}
        events.add("cpu_op", "record_param_comms", at_ns, at_ns + 10_000, tid, **on_host)
        correlation = events.launch("cudaLaunchKernelExC", at_ns + 5_000, tid)
    name = f"ncclDevKernel_{_collective(block)[1]}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    on_kernel = about if metadata == "kernel" else {}
    place = {"device": 0, "stream": stream, "correlation": correlation}
    events.add("kernel", name, block.start_ns, block.end_ns, 0, **place, **on_kernel)


def columns(**given: list[int]) -> Events:
    """Events from the columns that matter; the others are zero, and missing where that can be."""
    size = len(next(iter(given.values())))
    texts = ("shape", "types", "values", "graph")
    missing = dict.fromkeys(("device", "stream", "correlation", "bytes", "occupancy", "sequence", *texts), -1)
    types = {"category": np.int8} | dict.fromkeys(("name", "thread", "device", "occupancy", *texts), np.int32)
    return Events(
        **{
            name: np.array(given.get(name, [missing.get(name, 0)] * size), types.get(name, np.int64))
            for name in Events.__struct_fields__
        }
    )
