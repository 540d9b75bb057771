"""Classes of jobs in which it matters which ranks and steps are compared: simulated, with healthy twins, and graded.

    python benchmarks/classes_comparable.py SHARED [--only CLASS ...] [--jobs 4] [--seed 1] [--keep DIR]

SHARED is the directory with tools/simulate.py and traces/. Each class is simulated from its mechanism: what hosts, GPUs
and clocks do, and what a profiler records of it. Job k of a class and seed is always the same; every job has a twin
without the fault, which has to be `healthy`. A job is right where the verdict is one of the fault's rules, the findings
above info name exactly the true ranks and nothing else, and their costs come within 10 % of the step of the true cost:
what the recorded steps are longer by than those of the twin. A fault that costs under 8 % of the step need not be
found. No answer may contradict itself (`consistency`).
"""

from __future__ import annotations

import argparse
import copy
import gzip
import importlib
import math
import random
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))
from consistency import broken
from simulated import FAULTY, left_out, quick

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.findings import Finding, Severity

#: Steps are recorded from this one on.
FIRST = 12
#: What the costs may miss, of the step.
TOLERANCE = 0.10
#: Where simulate.py puts the zero of its times, us.
ORIGIN_US = 4e12
SLOW_RANK = ("straggler",)
Events = list[dict[str, Any]]
#: The events of a rank's file, given its rank and the simulation.
Edit = Callable[[Any, int, Events], Events]


@dataclass(frozen=True)
class Fault:
    """What has to be found."""

    rules: tuple[str, ...]
    #: None if it is a fault of all ranks, or of none that has a trace.
    ranks: tuple[int, ...] | None = None


@dataclass
class Job:
    """A job of a class: how it is played, recorded, and what is wrong with it."""

    base: Any
    faults: list[Fault]
    steps: int = 5
    #: Options of `Sim` of the healthy twin, and what the fault changes.
    options: dict[str, Any] = field(default_factory=dict)
    fault: dict[str, Any] = field(default_factory=dict)
    #: Options of `Sim.write`, and what is then done to the events of each file.
    write: dict[str, Any] = field(default_factory=dict)
    edit: Edit | None = None
    #: Whether the twin has to be healthy: not where most ranks lack a trace.
    has_twin: bool = True
    #: Whether the costs tell what is true.
    has_cost: bool = True


class Bases:
    """Recorded steps to play, by trace and scale of the CPU's times."""

    def __init__(self, shared: Path) -> None:
        sys.path.insert(0, str(shared / "tools"))
        self.simulate = importlib.import_module("simulate")
        self._traces = shared / "traces"
        self._known: dict[tuple[str, float], Any] = {}

    def __call__(self, name: str, scale: float) -> Any:
        if (name, scale) not in self._known:
            self._known[name, scale] = self.simulate.Base(str(self._traces / name), hscale=scale)
        return self._known[name, scale]

    def drawn(self, rng: random.Random, *names: str) -> Any:
        return self(rng.choice(names or ("healthy", "healthy8")), rng.choice((0.6, 0.7)))


Class = Callable[[Bases, random.Random], Job]
CLASSES: dict[str, Class] = {}


def _class(draw: Class) -> Class:
    CLASSES[draw.__name__] = draw
    return draw


def _stall(base: Any, slow: int, where: str, us: float) -> dict[str, Any]:
    return {"pauses": lambda rank, step: [(base.ranks[rank][where], us)] if rank == slow else []}


def _slow_gpu(slow: int, factor: float) -> dict[str, Any]:
    return {"kf": lambda rank, step, event: factor if rank == slow else 1.0}


def _slow_rank(base: Any, rng: random.Random, ranks: Sequence[int] | None = None) -> tuple[int, dict[str, Any]]:
    """A rank that is slow in every step, on its CPU or on its GPU."""
    slow = rng.choice(ranks or range(len(base.ranks)))
    if rng.random() < 0.5:
        return slow, _stall(base, slow, "fwend", rng.uniform(30e3, 90e3))
    return slow, _slow_gpu(slow, rng.uniform(1.5, 2.5))


@_class
def loader_on_most(bases: Bases, rng: random.Random) -> Job:
    """Most ranks wait for their DataLoader in every step, each for a time of its own; the others have a fast disk."""
    base = bases.drawn(rng)
    size = len(base.ranks)
    stalled = sorted(rng.sample(range(size), rng.randint(size // 2 + 1, size - 1)))
    us = {rank: rng.uniform(40e3, 110e3) for rank in stalled}
    varies = rng.random() < 0.5
    noise = {(r, n): rng.uniform(0.7, 1.3) if varies else 1.0 for r in range(size) for n in range(41)}
    pauses = lambda rank, step: [(base.ranks[rank]["loader"], us[rank] * noise[rank, step])] if rank in us else []  # noqa: E731
    return Job(base, [Fault(("dataloader-stall",), tuple(stalled))], rng.randint(3, 6), fault={"pauses": pauses})


@_class
def clock_jumps(bases: Bases, rng: random.Random) -> Job:
    """The clock of one rank, or of its node, is set while it is recorded. One rank is slow."""
    base = bases.drawn(rng)
    steps = rng.randint(5, 8)
    jumps = rng.randrange(len(base.ranks))
    of_node = rng.random() < 0.4
    far = rng.choice([-1, 1]) * rng.choice([rng.uniform(5e3, 40e3), rng.uniform(128e3, 900e3)])
    at = rng.uniform(0.15, 0.85)
    slow, fault = _slow_rank(base, rng)

    def edit(played: Any, rank: int, events: Events) -> Events:
        if rank != jumps and not (of_node and rank // 2 == jumps // 2):
            return events
        start, end = (played.hs[rank][n] for n in (FIRST, FIRST + steps))
        # Every time is read off the clock as it is then; what runs across the jump is recorded with a wrong length.
        when = ORIGIN_US + start + at * (end - start)
        for event in (event for event in events if event.get("ph") == "X"):
            begin, until = event["ts"], event["ts"] + event["dur"]
            begin, until = (ts + far if ts >= when else ts for ts in (begin, until))
            event["ts"], event["dur"] = round(begin, 3), round(max(until - begin, 0), 3)
        return events

    return Job(base, [Fault(SLOW_RANK, (slow,))], steps, fault=fault, edit=edit)


@_class
def other_numbers(bases: Bases, rng: random.Random) -> Job:
    """Each rank counts its steps from where it began to: numbers differ, by some or by so much that none is shared."""
    base = bases.drawn(rng)
    size = len(base.ranks)
    shift = {rank: rng.choice([0, rng.randint(1, 3), rng.randint(10, 5000)]) for rank in range(size)}
    slow, fault = _slow_rank(base, rng)

    def edit(_: Any, rank: int, events: Events) -> Events:
        for event in events:
            if str(event["name"]).startswith("ProfilerStep#"):
                event["name"] = f"ProfilerStep#{int(event['name'].split('#')[1]) + shift[rank]}"
        return events

    return Job(base, [Fault(SLOW_RANK, (slow,))], rng.randint(3, 6), fault=fault, edit=edit)


@_class
def one_rank_a_node(bases: Bases, rng: random.Random) -> Job:
    """Only the first rank of each node is traced, and a rank without a trace is slow."""
    base = bases.drawn(rng)
    size = len(base.ranks)
    on_node = rng.choice([2, 4]) if size == 8 else 2
    hidden = tuple(rank for rank in range(size) if rank % on_node)
    _, fault = _slow_rank(base, rng, hidden)
    return Job(
        base, [Fault(("missing-straggler",))], rng.randint(3, 6), fault=fault, write={"hide": hidden}, has_cost=False
    )


@_class
def on_demand(bases: Bases, rng: random.Random) -> Job:
    """A capture on demand: all ranks record from one instant to another, without ProfilerSteps, in the middle of steps.

    What was launched before has no launch, what ends later no kernel, what the host was in is missing.
    """
    base = bases.drawn(rng)
    steps = rng.randint(5, 8)
    slow, fault = _slow_rank(base, rng)
    begins, lasts = rng.uniform(0.1, 0.9), steps - rng.uniform(0.2, 0.8)
    late = {rank: rng.uniform(0, 2e3) for rank in range(len(base.ranks))}

    def edit(played: Any, rank: int, events: Events) -> Events:
        first, last = played.hs[0][FIRST], played.hs[0][FIRST + steps]
        start = ORIGIN_US + first + begins * (last - first) / steps + late[rank]
        end = start + lasts * (last - first) / steps
        within = lambda event: event.get("ph") != "X" or start <= event["ts"] <= event["ts"] + event["dur"] <= end  # noqa: E731
        return [event for event in events if within(event)]

    # Steps before and behind the capture are written, and cut.
    return Job(base, [Fault(SLOW_RANK, (slow,))], steps, fault=fault, write={"profsteps": False, "more": 2}, edit=edit)


def _in_roles(base: Any, actors: int, names: tuple[str, str]) -> Any:
    """The base with two roles, whose ranks sum gradients among themselves; their last collective is one of all."""
    roles = copy.deepcopy(base)
    for number, rank in enumerate(roles.ranks):
        actor = number < actors
        mine = list(range(actors) if actor else range(actors, len(roles.ranks)))
        said = {
            "Process Group Name": "1" if actor else "2",
            "Process Group Description": names[0] if actor else names[1],
            "Process Group Ranks": str(mine),
            "Group size": len(mine),
        }
        calls = sorted(
            (call for call in rank["host"] if call["e"]["name"] == "record_param_comms"), key=lambda call: call["ts"]
        )
        for events in ([one["e"] for one in rank["comm"]], [call["e"] for call in calls]):
            for event in events[:-1]:
                event["args"] = event["args"] | {key: value for key, value in said.items() if key in event["args"]}
    return roles


@_class
def roles(bases: Bases, rng: random.Random) -> Job:
    """Reinforcement learning: some ranks are actors, some critics, with other work. One actor is slow."""
    plain = bases("healthy8", rng.choice((0.6, 0.7)))
    actors = rng.choice([4, 4, 5, 6])
    base = _in_roles(plain, actors, rng.choice([("undefined", "undefined"), ("actor", "critic")]))
    share = rng.choice([rng.uniform(0.25, 0.6), rng.uniform(0.6, 0.8)])
    last = len(base.T) - 1
    members = lambda j, rank: range(8) if j == last else range(actors) if rank < actors else range(actors, 8)  # noqa: E731
    work = lambda rank, step, event: 1.0 if rank < actors else share  # noqa: E731
    slow, fault = _slow_rank(base, rng, range(actors))
    if "kf" in fault:
        slower = fault["kf"]
        fault = {"kf": lambda rank, step, event: work(rank, step, event) * slower(rank, step, event)}
    options = {"kf": work, "members": members, "cf": lambda step, collective, rank: 1.0}
    return Job(base, [Fault(SLOW_RANK, (slow,))], rng.randint(3, 6), options=options, fault=fault)


def _with_lengths(length: dict[int, float]) -> Edit:
    """Grids and shapes of each step as its sequences are long."""

    def edit(_played: Any, _rank: int, events: Events) -> Events:
        for event in events:
            step = int(event.get("args", {}).get("correlation", 0)) // 1_000_000
            grid = event.get("args", {}).get("grid")
            # Kernels of parameters, as the optimizer's, are as large as ever.
            if grid and step in length and not any(word in event["name"] for word in ("nccl", "multi_tensor")):
                event["args"] = event["args"] | {"grid": [max(round(grid[0] * length[step]), 1), *grid[1:]]}
        return events

    return edit


@_class
def other_lengths(bases: Bases, rng: random.Random) -> Job:
    """The sequences of each step have a length of their own, equal on all ranks; one rank is slow, or none."""
    base = bases.drawn(rng)
    steps = rng.randint(5, 8)
    length = {step: rng.choice([0.5, 0.75, 1.0, 1.0, 1.5, 2.0]) for step in range(41)}
    if rng.random() < 0.5:
        length = {step: rng.uniform(0.5, 2.0) for step in range(41)}
    of_work = lambda step, event: length[step] if "multi_tensor" not in event["name"] else 1.0  # noqa: E731
    options = {"kf": lambda rank, step, event: of_work(step, event)}
    slow, factor = rng.randrange(len(base.ranks)), rng.uniform(1.5, 2.5)
    if rng.random() < 0.5:
        fault = _stall(base, slow, "fwend", rng.uniform(50e3, 120e3))
    else:
        fault = {"kf": lambda rank, step, event: of_work(step, event) * (factor if rank == slow else 1.0)}
    return Job(base, [Fault(SLOW_RANK, (slow,))], steps, options=options, fault=fault, edit=_with_lengths(length))


@_class
def slow_among_lengths(bases: Bases, rng: random.Random) -> Job:
    """Sequences of other lengths, and one step in which all GPUs take longer for the same work."""
    job = other_lengths(bases, rng)
    once, factor = rng.choice(range(FIRST + 1, FIRST + job.steps)), rng.uniform(2.5, 4.0)
    work = job.options["kf"]
    job.fault = {"kf": lambda rank, step, event: work(rank, step, event) * (factor if step == once else 1.0)}
    job.faults = [Fault(("slow-step",))]
    return job


@_class
def ends_idle(bases: Bases, rng: random.Random) -> Job:
    """All hosts do something at the end of each step, while their GPUs run dry."""
    base = bases.drawn(rng)
    us = rng.uniform(30e3, 100e3)
    pauses = lambda rank, step: [(base.ranks[rank]["optend"], us)]  # noqa: E731
    return Job(base, [Fault(("host-stall",))], rng.randint(3, 5), fault={"pauses": pauses})


@_class
def prefetcher(bases: Bases, rng: random.Random) -> Job:
    """A prefetcher copies the next batch on a stream of its own while GPUs work off what was launched before."""
    base = bases.drawn(rng)
    slow, fault = _slow_rank(base, rng)
    us = rng.uniform(200, 2000)
    rate = rng.uniform(0.25, 0.5)

    def mark(played: Any, rank: int, step: int, put: Callable[..., None], recorded: Any) -> None:
        if step < played.first:
            return
        at = played.hs[rank][step] + rng.uniform(20, 30)
        number = 1_000_000 * step + 990_000
        host = {"ph": "X", "pid": recorded["pid"], "tid": recorded["main"]}
        put({**host, "cat": "cpu_op", "name": "aten::copy_", "args": {"External id": number}}, at, 12)
        launch = {"External id": number, "correlation": number}
        put({**host, "cat": "cuda_runtime", "name": "cudaMemcpyAsync", "args": launch}, at + 3, 6)
        copied = {"device": 0, "context": 1, "stream": 20, "correlation": number, "External id": number}
        copied |= {"bytes": int(us * 20e3), "memory bandwidth (GB/s)": 20.0}
        name = "Memcpy HtoD (Pinned -> Device)"
        event = {"ph": "X", "cat": "gpu_memcpy", "name": name, "pid": 0, "tid": 20, "args": copied}
        put(event, at + 12, us)

    # CPUs run far ahead of their GPUs.
    fast = bases("healthy" if len(base.ranks) == 4 else "healthy8", rate)
    if "pauses" in fault:
        fault = _slow_gpu(slow, rng.uniform(1.5, 2.5))
    return Job(fast, [Fault(SLOW_RANK, (slow,))], rng.randint(3, 6), fault=fault, write={"mark": mark})


def _graphed(base: Any, quicker: float) -> Any:
    """The base with what it computes up to the optimizer in CUDA graphs: one launch between two collectives.

    The CPU takes a share `quicker` of the time that it took to launch one by one.
    """
    graphed = copy.deepcopy(base)
    for rank in graphed.ranks:
        opt = min(one["launch"] for one in rank["dev"] if one.get("after"))
        launch = None
        spans: list[tuple[float, float]] = []
        graphs: list[dict[str, Any]] = []
        covered: set[int] = set()
        for one in rank["dev"]:
            if one["comm"] or one["launch"] >= opt:
                launch = None
                continue
            if one["e"]["cat"] == "gpu_memcpy":
                continue
            if launch is None:
                launch = one
                graphs.append(one)
            covered.add(one["e"]["args"]["correlation"])
            spans.append((launch["launch"], one["launch"]))
            one["launch"] = launch["launch"]
            one["e"]["args"] = one["e"]["args"] | {"correlation": launch["e"]["args"]["correlation"], "graph id": 1}
        until: dict[float, float] = {}
        for start, end in spans:
            until[start] = max(until.get(start, end), end)
        kept = []
        for call in rank["host"]:
            event = call["e"]
            is_call = event["cat"] in ("cuda_runtime", "cuda_driver", "cpu_op")
            inside = any(start - 30 <= call["ts"] <= end + 1 for start, end in until.items())
            if is_call and inside and "comms" not in event["name"] and "allreduce" not in event["name"]:
                correlation = event.get("args", {}).get("correlation")
                if correlation in covered or not _launches_communication(event, rank):
                    continue
            kept.append(call)
        for one in graphs:
            number = one["e"]["args"]["correlation"]
            args = {"External id": 0, "correlation": number, "cbid": 514}
            event = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch"}
            event |= {"pid": rank["pid"], "tid": rank["main"]}
            kept.append({"e": event | {"args": args}, "ts": one["launch"], "dur": 20.0})
        rank["host"] = kept
        _quicken(rank, sorted(until.items()), quicker)
    return graphed


def _launches_communication(event: dict[str, Any], rank: dict[str, Any]) -> bool:
    known = {one["e"]["args"]["correlation"] for one in rank["comm"]}
    return event.get("args", {}).get("correlation") in known


def _quicken(rank: dict[str, Any], spans: Sequence[tuple[float, float]], share: float) -> None:
    """Let the CPU take a share of the time in some spans."""

    def at(time: float) -> float:
        gone = sum(max(min(time, end) - (start + 25), 0.0) for start, end in spans)
        return time - (1 - share) * gone

    for call in rank["host"]:
        start, end = at(call["ts"]), at(call["ts"] + call["dur"])
        call["ts"], call["dur"] = start, end - start
    for one in rank["dev"]:
        one["launch"] = at(one["launch"])
    for name in ("period", "opt", "loader", "fwend", "optend"):
        if rank[name]:
            rank[name] = at(rank[name])


_GRAPHED: dict[tuple[int, float, float], Any] = {}


@_class
def graph_launches(bases: Bases, rng: random.Random) -> Job:
    """Forward and backward are CUDA graphs, replayed outside of any operator; one rank is slow."""
    name, scale, quicker = rng.choice(["healthy", "healthy8"]), rng.choice((0.6, 0.7)), rng.choice([0.05, 0.2])
    plain = bases(name, scale)
    key = (len(plain.ranks), scale, quicker)
    if key not in _GRAPHED:
        _GRAPHED[key] = _graphed(plain, quicker)
    base = _GRAPHED[key]
    slow, fault = _slow_rank(base, rng)
    options = {"mode": "event"}
    return Job(base, [Fault(SLOW_RANK, (slow,))], rng.randint(3, 6), options=options, fault=fault)


@_class
def pause_every_third(bases: Bases, rng: random.Random) -> Job:
    """All ranks pause every few steps, and one rank is slow in every step."""
    base = bases.drawn(rng, "healthy")
    every, phase = rng.choice([3, 3, 4]), rng.randrange(3)
    us = rng.uniform(150e3, 550e3)
    where = rng.choice(["optend", "fwend"])
    slow = rng.randrange(len(base.ranks))
    longer = rng.uniform(30e3, 100e3)

    def pauses(rank: int, step: int) -> list[tuple[float, float]]:
        of_all = [(base.ranks[rank][where], us)] if step % every == phase else []
        return sorted([*of_all, *([(base.ranks[rank]["fwend"], longer)] if rank == slow else [])])

    faults = [Fault(SLOW_RANK, (slow,)), Fault(("slow-step", "host-stall"))]
    return Job(base, faults, rng.choice([12, 24]), fault={"pauses": pauses})


# What follows plays, writes and grades.


def play(bases: Bases, job: Job, *, faulty: bool) -> Any:
    """The job, or its healthy twin."""
    options = job.options | (job.fault if faulty else {})
    return quick(bases.simulate.Sim)(job.base, FIRST + job.steps + 4, **options)


def window_ms(played: Any, steps: range) -> float:
    """Mean length of some steps over ranks."""
    took = [(end[steps[-1]] - end[steps[0] - 1]) / len(steps) for end in played.end]
    return float(sum(took) / len(took) / 1e3)


def diagnosed(job: Job, answer: Any) -> range:
    """The recorded steps that costs are of: without the first ones where the doctor left these out."""
    return range(FIRST + left_out(answer.job, job.steps), FIRST + job.steps)


def write(played: Any, job: Job, folder: Path) -> None:
    """Write the traces of all ranks."""
    more = dict(job.write)
    last = FIRST + job.steps - 1 + more.pop("more", 0)
    played.first = FIRST
    played.write(str(folder), FIRST, last, **more)
    for rank in range(len(job.base.ranks)):
        path = folder / job.base.ranks[rank]["file"]
        if job.edit and path.exists():
            with gzip.open(path) as file:
                trace = msgspec.json.decode(file.read())
            trace["traceEvents"] = job.edit(played, rank, trace["traceEvents"])
            with gzip.open(path, "wb", 1) as file:
                file.write(msgspec.json.encode(trace))


def wrong(job: Job, answer: Any, true_ms: float, step_ms: float, *, faulty: bool) -> Iterator[str]:
    """What is wrong with an answer."""
    found = answer.diagnosis
    loud = [finding for finding in found.findings if finding.severity != Severity.INFO.label]
    said = ", ".join(f"{one.rule} {list(one.ranks)} {one.cost_ms:.1f}" for one in loud)
    yield from broken(found)
    if not faulty:
        # With traces of under half of the ranks no job is known to be healthy.
        hides_most = 2 * len(job.write.get("hide", ())) > len(job.base.ranks)
        if found.verdict != ("unknown" if hides_most else "healthy") or loud:
            yield f"the twin is {found.verdict} ({said})"
        return
    # Such as a pause of a CPU that is far ahead of its GPU.
    if job.has_cost and true_ms < FAULTY * step_ms and found.verdict == "healthy" and not loud:
        return
    if not any(found.verdict in fault.rules for fault in job.faults):
        yield f"verdict {found.verdict} ({said})"
    for fault in job.faults:
        mine = [one for one in loud if one.rule in fault.rules]
        ranks = {rank for one in mine for rank in one.ranks}
        if not mine:
            yield f"no {'/'.join(fault.rules)} ({said})"
        elif fault.ranks is not None and ranks != set(fault.ranks):
            yield f"ranks {sorted(ranks)}, true {list(fault.ranks)}"
    if false := [one.rule for one in loud if not any(_fits(one, fault) for fault in job.faults)]:
        yield f"false {false}"
    costs = {one.id: one.cost_ms for one in found.findings}
    tracing = costs.pop("profiler-overhead", 0.0)
    apart = min(abs(sum(costs.values()) + more - true_ms) for more in (0.0, tracing))
    if job.has_cost and apart > TOLERANCE * step_ms:
        yield f"costs {sum(costs.values()):.1f} and {tracing:.1f} of tracing, true {true_ms:.1f} of {step_ms:.1f}"


def _fits(finding: Finding, fault: Fault) -> bool:
    return finding.rule in fault.rules and (fault.ranks is None or set(finding.ranks) <= set(fault.ranks))


def examined(folder: Path) -> Any:
    """What the doctor says."""
    (run,) = discover(folder)
    return engine.diagnose(run, reading=engine.Reading(cache=Cache(None)))


def graded(job: Job, played: Any, twin: Any, folder: Path, *, faulty: bool) -> tuple[float, float, list[str]]:
    """The step, the true cost in it, both ms, and what is wrong with the answer."""
    try:
        answer = examined(folder)
    except engine.RunError as error:
        return 0.0, 0.0, [f"no answer: {error}"]
    steps = diagnosed(job, answer)
    step_ms = window_ms(played, steps)
    true_ms = step_ms - window_ms(twin, steps)
    return step_ms, true_ms, list(wrong(job, answer, true_ms, step_ms, faulty=faulty))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is wrong, and how many of each class are right; returns 1 if a class misses the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shared", type=Path)
    parser.add_argument("--only", choices=list(CLASSES), nargs="*", help="these classes alone")
    parser.add_argument("--jobs", type=int, default=4, help="of each class")
    parser.add_argument("--first", type=int, default=0, help="number of the first job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--twins", action=argparse.BooleanOptionalAction, default=True, help="grade the twins too")
    parser.add_argument("--keep", type=Path, help="where traces stay")
    options = parser.parse_args(arguments)
    folder = options.keep or Path(tempfile.mkdtemp())
    bases, console = Bases(options.shared), Console(width=200, highlight=False, soft_wrap=True)
    right: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    try:
        for name in options.only or CLASSES:
            for number in range(options.first, options.first + options.jobs):
                job = CLASSES[name](bases, random.Random(f"{options.seed}:{name}:{number}"))
                twin = play(bases, job, faulty=False)
                for faulty in (True, False)[: 1 + options.twins]:
                    played = play(bases, job, faulty=True) if faulty else twin
                    place = folder / f"{name}-{options.seed}-{number}{'' if faulty else '-twin'}"
                    write(played, job, place)
                    step_ms, true_ms, problems = graded(job, played, twin, place, faulty=faulty)
                    tally = right[name]
                    tally[0 if faulty else 2] += not problems
                    tally[1 if faulty else 3] += 1
                    if problems:
                        console.print(f"{place.name}: step {step_ms:.1f}, true {true_ms:.1f}: {'; '.join(problems)}")
                    if not options.keep:
                        shutil.rmtree(place)
    finally:
        if not options.keep:
            shutil.rmtree(folder)
    for name, (good, jobs, calm, twins) in right.items():
        console.print(f"{name:20s} {good} of {jobs} right, {calm} of {twins} twins healthy")
    return int(any(good < math.floor(0.9 * jobs) or calm < twins for good, jobs, calm, twins in right.values()))


if __name__ == "__main__":
    sys.exit(main())
