"""How right the doctor is on random simulated jobs, whose faults are known to the microsecond.

    python benchmarks/simulated.py SHARED [--jobs 200] [--seed 1] [--only KIND] [--keep DIR]

SHARED is the directory with tools/simulate.py, which plays one recorded step of a healthy job N times with faults put
in, and traces/ with these jobs. Each job here has a random fault of a random kind, or none; job k of a seed is the same
whatever the number of jobs. Its true cost is what the recorded window is longer by than that of its twin: the same job
without the fault. With --keep the traces and digests stay in DIR, and later runs use them.

What is compared:

- Cost: findings and tracing together, less those of the twin, with the true cost. The twin's step is traced as well, so
  what tracing adds to both is nobody's fault.
- Range: that of the costliest finding, moved by the other findings and by tracing as above. Jobs of one fault.
- Floor: with the tracing of the twin, with the twin's step.
- Rules off: what an examination without rules leaves unexplained, with tracing as above, with the true cost.

A network that is slow in every collective alike, and in each step, looks like a network that is slow: there only the
rule is judged. Faults that cost under 8 % of the step need not be found.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import random
import shutil
import sys
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))
from bars import print_bars
from consistency import HEADLINE_SAVES, headline_saves

from tb_ddp_doctor import engine
from tb_ddp_doctor.account.savings import Savings
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.findings import MOST_UNEXPLAINED, Finding, Severity
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.replay.whatif import WhatIf

#: (rank, step) -> where in the step a host pauses, and for how long, us.
Pauses = Callable[[int, int], list[tuple[float, float]]]
#: Steps are recorded from this one on; it is one that all accumulation periods divide.
FIRST = 12
#: Share of the step that a fault has to cost to be one.
FAULTY = 0.08
#: With this share of the unexplained time, one owner, phase and set of ranks holds most of it, and a rule names it.
MOST_HELD = 0.5
SLOW = ("straggler", "load-imbalance")


@dataclass(frozen=True)
class Truth:
    """A fault of a job."""

    rules: tuple[str, ...]
    #: None if it is a fault of all ranks.
    ranks: tuple[int, ...] | None = None
    #: Whether it has to be found, and on all of its ranks.
    required: bool = True
    all_ranks: bool = True
    #: Whether one finding has to name all of its ranks, as of a node.
    as_one: bool = False
    #: The only recorded step that it is in, counted from 0; None if it is in others too.
    once: int | None = None

    def fits(self, finding: Finding) -> bool:
        return finding.rule in self.rules and (self.ranks is None or set(finding.ranks) <= set(self.ranks))

    def is_found(self, findings: Sequence[Finding]) -> bool:
        mine = [finding for finding in findings if self.fits(finding)]
        if self.as_one:
            return any(set(finding.ranks) == set(self.ranks or ()) for finding in mine)
        named = {rank for finding in mine for rank in finding.ranks}
        return bool(mine) and (self.ranks is None or not self.all_ranks or named == set(self.ranks))


@dataclass
class Draw:
    """A job to be played."""

    kind: str
    base: str
    steps: int
    truths: list[Truth]
    pauses: Pauses = lambda rank, step: []
    factor: Callable[[int, int, Any], float] = lambda rank, step, event: 1.0
    transfer: Callable[..., float] = lambda step, collective, rank=0: 1.0
    mode: str = "queue"
    #: Collectives are sent in every step of so many only.
    period: int = 1
    hide: tuple[int, ...] = ()
    skew_us: float = 0.0
    #: Launches that the queue holds, and the noise of each kernel.
    queue: int = 1024
    jitter: float = 0.0
    #: Ranks are recorded from so many steps later on.
    late: tuple[int, ...] = ()
    #: What NCCL's kernels are called.
    rename: Callable[[str], str] | None = None
    #: Faults on their own, to see which of them matter.
    parts: list[dict[str, Any]] = field(default_factory=list)
    is_visible: bool = True


@dataclass(frozen=True)
class Known:
    """What is known of a job that was written."""

    kind: str
    step_ms: float
    true_ms: float
    twin: str
    truths: tuple[Truth, ...]
    is_visible: bool
    #: Length of the recorded steps without the first 0, 1, 2, ... of them, the mean of a step.
    rest_ms: tuple[float, ...] = ()

    def without_first(self, steps: int) -> Known:
        """The same without some of the first recorded steps, which the doctor leaves out where ranks begin apart."""
        step = self.rest_ms[steps] if steps else self.step_ms
        truths = tuple(
            replace(one, required=False) if one.once is not None and one.once < steps else one for one in self.truths
        )
        return replace(self, step_ms=step, true_ms=self.true_ms + step - self.step_ms, truths=truths)


@dataclass(frozen=True)
class Seen:
    """What the doctor said of a job, ms a step."""

    verdict: str
    findings: tuple[Finding, ...]
    step: float
    floor: float
    tracing: float
    #: With no rules.
    unexplained: float
    unexplained_share: float
    tracing_without_rules: float
    #: Where the witnesses of slow ranks disagree.
    contradictions: tuple[str, ...] = ()
    #: What the fixes in the headline save alone, and what the headline says of them; 1 where it says nothing of one.
    headline_saves: float = 1.0
    #: Where the verdict is `unexplained`, the share of that time which one owner, phase and set of ranks holds.
    held_by_one: float = 0.0
    #: How many of the first recorded steps were left out.
    left_out: int = 0

    @property
    def loud(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity != Severity.INFO.label]

    @property
    def said(self) -> float:
        return sum(finding.cost_ms for finding in self.findings if finding.rule != "profiler-overhead") + self.tracing


class Player:
    """Plays and writes jobs."""

    def __init__(self, shared: Path, folder: Path) -> None:
        sys.path.insert(0, str(shared / "tools"))
        self.simulate = importlib.import_module("simulate")
        self._traces, self._folder = shared / "traces", folder
        self._bases: dict[str, Any] = {}
        self._twins: dict[tuple[str, str, int, int], Any] = {}

    def base(self, name: str) -> Any:
        if name not in self._bases:
            trace, scale, *grouped = name.split("@")
            self._bases[name] = self.simulate.Base(str(self._traces / trace), hscale=float(scale))
            if grouped:
                group(self._bases[name])
        return self._bases[name]

    def play(self, draw: Draw, **changes: Any) -> Any:
        options = {
            "mode": draw.mode,
            "drop": (lambda step: step % draw.period != draw.period - 1) if draw.period > 1 else None,
            "pauses": draw.pauses,
            "kf": draw.factor,
            "cf": draw.transfer,
            "Q": draw.queue,
            "jit": draw.jitter,
            "members": in_pairs if draw.base.endswith("@pairs") else None,
        }
        return quick(self.simulate.Sim)(self.base(draw.base), FIRST + draw.steps + 1, **options | changes)

    def window(self, played: Any, steps: int, first: int = 0) -> float:
        """Length of a step, the mean of the recorded ones from `first` on, ms."""
        before, last = FIRST + first - 1, FIRST + steps - 1
        return sum((end[last] - end[before]) / (last - before) for end in played.end) / len(played.end) / 1e3

    def write(self, draw: Draw, name: str) -> Known:
        key = (draw.base, draw.mode, draw.period, draw.queue)
        none: dict[str, Any] = {"pauses": None, "kf": None, "cf": lambda *_: 1.0, "jit": 0.0}
        twin = f"twin-{draw.base}-{draw.mode}-{draw.period}" + (f"-{draw.queue}" if draw.queue != 1024 else "")
        if key not in self._twins:
            self._twins[key] = self.play(longest(draw), **none)
        if not (self._folder / twin).exists():
            steps = 6 if draw.period == 1 else 2 * draw.period
            self._twins[key].write(str(self._folder / twin), FIRST, FIRST + steps - 1)
        without = self.window(self._twins[key], draw.steps)
        played = self.play(draw)
        rate = draw.skew_us / 5e4
        played.write(
            str(self._folder / name),
            FIRST,
            FIRST + draw.steps - 1,
            hide=draw.hide,
            steps_of=dict.fromkeys(draw.late, (FIRST + 1, FIRST + draw.steps - 1)),
            rename=draw.rename,
            clock=(lambda rank, at: at + (rank // 2) * (draw.skew_us + 1e-3 * rate * (at - 4e12))) if rate else None,
        )
        truths = list(draw.truths)
        for number, part in enumerate(draw.parts):
            alone = self.window(self.play(draw, **none | part), draw.steps) - without
            truths[number] = replace(truths[number], required=alone > FAULTY * without)
        rest = tuple(self.window(played, draw.steps, first) for first in range(draw.steps))
        known = Known(draw.kind, rest[0], rest[0] - without, twin, tuple(truths), draw.is_visible, rest)
        (self._folder / f"{name}.json").write_text(json.dumps(asdict(known)))
        return known

    # What follows draws jobs.

    def place(self, rng: random.Random, base: str, where: str) -> Callable[[int], float]:
        """Where each rank's host pauses."""
        ranks = self.base(base).ranks
        if where != "operator":
            return lambda rank: float(ranks[rank][where])
        share = rng.uniform(0.2, 0.8)
        places = []
        for rank in ranks:
            operators = [
                event
                for event in rank["host"]
                if event["e"]["cat"] == "cpu_op"
                and event["dur"] > 30
                and event["ts"] > 3000
                and "autograd" not in event["e"]["name"]
            ]
            chosen = operators[int(share * len(operators))]
            places.append(chosen["ts"] + chosen["dur"] / 2)
        return lambda rank: float(places[rank])

    def draw(self, kind: str, rng: random.Random) -> Draw:
        """A random job of a kind."""
        base = rng.choice([*[f"healthy@{rng.choice((0.6, 0.8))}"] * 2, "healthy8@0.6"])
        if kind in ("node", "nodes", "skewed", "hidden_two"):
            base = "healthy8@0.6"
        if kind in ("pairs", "slow_pair"):
            base = "healthy8@0.6@pairs"
        ranks = len(self.base(base).ranks)
        draw = Draw(kind, base, rng.randint(3, 6), [])
        where = rng.choice(["loader", "fwend", "optend", "operator"])
        place = self.place(rng, base, where)
        length = rng.choice([rng.uniform(15e3, 50e3), rng.uniform(50e3, 150e3)])
        slow = rng.randrange(ranks)
        factor = rng.uniform(1.2, 3.0)
        window = range(FIRST, FIRST + draw.steps)

        def stalls(*chosen: int, us: float = length) -> Pauses:
            return lambda rank, step: [(place(rank), us)] if rank in chosen else []

        if kind == "accumulation":
            draw.period = rng.choice([2, 3, 4])
            draw.steps = 2 * draw.period
        if kind in STALLS:
            draw.pauses = stalls(slow)
            draw.truths = [Truth(("straggler",), (slow,))]
        if kind == "queue0":
            draw.mode = "queue0"
        elif kind == "paced":
            draw.mode = rng.choice(["item", "event"])
        elif kind == "skewed":
            draw.skew_us = rng.uniform(100, 8000)
        elif kind == "hidden_other":
            draw.hide = (rng.choice([rank for rank in range(ranks) if rank != slow]),)
        elif kind == "hidden_two":
            draw.hide = tuple(sorted(rng.sample([rank for rank in range(ranks) if rank != slow], 2)))
        elif kind == "late":
            draw.late, draw.steps = (rng.randrange(ranks),), draw.steps + 1
        elif kind == "renamed":
            old, now = rng.choice(
                [("ncclDevKernel", "ncclKernel"), ("ncclDevKernel_AllReduce", "ncclDevKernel_Generic")]
            )
            draw.rename = lambda name: name.replace(old, now)
        elif kind == "short_queue":
            draw.queue = rng.choice([256, 512])
        elif kind == "jitter_and_stall":
            draw.jitter = rng.uniform(0.02, 0.1)
        elif kind == "noise_and_stall":
            noise = {(r, s): rng.gauss(1, 0.02) for r in range(ranks) for s in range(FIRST + draw.steps + 1)}
            draw.factor = lambda rank, step, event: noise[rank, step]
        elif kind == "accumulation_on_device":
            draw.period = rng.choice([2, 3, 4])
            draw.steps = 2 * draw.period
            draw.factor = lambda rank, step, event: factor if rank == slow else 1.0
            draw.truths = [Truth(("straggler",), (slow,))]
        elif kind == "slow_pair":
            times = rng.uniform(3, 8)
            draw.transfer = lambda step, collective, rank: (
                times if rank // 2 == slow // 2 and not collective % 2 else 1.0
            )
            draw.truths = [Truth(("slow-link", "straggler"), (slow // 2 * 2, slow // 2 * 2 + 1))]
        elif kind == "hidden_slow":
            draw.hide, draw.truths = (slow,), [Truth(("missing-straggler",))]
        elif kind == "stall_in_some_steps":
            when = set(rng.sample(window, rng.randint(1, max(1, draw.steps // 2))))
            draw.pauses = lambda rank, step: [(place(rank), length)] if rank == slow and step in when else []
            draw.truths = [Truth(SLOW, (slow,))]
        elif kind == "stall_varies":
            long = {step: rng.gammavariate(2, length / 2) for step in range(FIRST + draw.steps + 1)}
            draw.pauses = lambda rank, step: [(place(rank), long[step])] if rank == slow else []
            draw.truths = [Truth(SLOW, (slow,))]
        elif kind == "slow_device":
            draw.factor = lambda rank, step, event: factor if rank == slow else 1.0
            draw.truths = [Truth(("straggler",), (slow,))]
        elif kind == "slow_kernels":
            part, factor = rng.choice(["gemm", "elementwise", "flash", "norm"]), 2 * factor
            draw.factor = lambda rank, step, event: factor if rank == slow and part in event["name"].lower() else 1.0
            draw.truths = [Truth(("straggler",), (slow,))]
        elif kind == "device_in_some_steps":
            when = set(rng.sample(window, rng.randint(1, max(1, draw.steps // 2))))
            draw.factor = lambda rank, step, event: factor if rank == slow and step in when else 1.0
            draw.truths = [Truth(SLOW, (slow,))]
        elif kind == "moving":
            turn = {step: rng.randrange(ranks) for step in range(FIRST + draw.steps + 1)}
            on_host = rng.random() < 0.5
            if on_host:
                draw.pauses = lambda rank, step: [(place(rank), length)] if rank == turn[step] else []
            else:
                draw.factor = lambda rank, step, event: factor if rank == turn[step] else 1.0
            in_window = [turn[step] for step in range(FIRST - (2 if on_host else 0), FIRST + draw.steps)]
            draw.truths = [Truth(SLOW, tuple(set(in_window)), all_ranks=False)]
        elif kind in ("several", "most", "node", "nodes"):
            least, most = (2, max(2, ranks // 2 - 1)) if kind == "several" else (ranks // 2 + 1, ranks - 1)
            several = rng.sample(range(ranks), rng.randint(least, most))
            if kind == "node":
                several = [slow // 2 * 2, slow // 2 * 2 + 1]
            elif kind == "nodes":
                several = [rank for node in rng.sample(range(4), 2) for rank in (2 * node, 2 * node + 1)]
            factors: dict[int, float] = {}
            if rng.random() < 0.7:
                us = {rank: (40e3 + length) * rng.uniform(0.7, 1) for rank in several}
                draw.pauses = lambda rank, step: [(place(rank), us[rank])] if rank in us else []
            else:
                factors = {rank: 1 + factor * rng.uniform(0.7, 1) for rank in several}
                draw.factor = lambda rank, step, event: factors.get(rank, 1.0)
            # Most of the ranks are no stragglers, if each of them has a stall of its own: that is named by its place.
            rules = ("host-stall", "op-stall", "dataloader-stall") if kind == "most" and not factors else ()
            draw.truths = [Truth(("straggler", *rules), tuple(sorted(several)), as_one=kind == "node")]
        elif kind == "loader_on_all":
            place = self.place(rng, base, "loader")
            draw.pauses = stalls(*range(ranks))
            draw.truths = [Truth(("dataloader-stall",))]
        elif kind == "stall_on_all":
            place = self.place(rng, base, rng.choice(["fwend", "optend"]))
            draw.pauses = stalls(*range(ranks))
            draw.truths = [Truth(("host-stall",))]
        elif kind == "stall_on_all_once":
            place, once = self.place(rng, base, rng.choice(["fwend", "optend"])), rng.choice(window[:-1])
            draw.pauses = lambda rank, step: [(place(rank), 2 * length)] if step == once else []
            draw.truths = [Truth(("host-stall", "slow-step"))]
        elif kind == "device_on_all_once":
            once = rng.choice(window)
            draw.factor = lambda rank, step, event: 1 + factor if step == once else 1.0
            draw.truths = [Truth(("slow-step",))]
        elif kind == "slow_network":
            times = rng.uniform(3, 8)
            draw.transfer = lambda step, collective, rank=0: times
            draw.truths, draw.is_visible = [Truth(("communication-bound",))], False
        elif kind == "network_once":
            once, which, times = rng.choice(window), rng.randrange(6), rng.uniform(20, 80)
            draw.transfer = lambda step, collective, rank=0: times if (step, collective) == (once, which) else 1.0
            draw.truths = [Truth(("slow-step", "variable-transfers"))]
        elif kind == "two_faults":
            other = rng.choice([rank for rank in range(ranks) if rank != slow])
            second = rng.choice(["loader", "device", "host-stall"])
            one = stalls(slow)
            draw.truths = [Truth(("straggler",), (slow,))]
            if second == "device":
                slower = lambda rank, step, event: factor if rank == other else 1.0  # noqa: E731
                draw.pauses, draw.factor = one, slower
                draw.truths.append(Truth(("straggler",), (other,)))
                draw.parts = [{"pauses": one}, {"kf": slower}]
            else:
                at = self.place(rng, base, "loader" if second == "loader" else "fwend")
                more = rng.uniform(20e3, 100e3)
                two: Pauses = lambda rank, step: [(at(rank), more)]  # noqa: E731
                draw.pauses = lambda rank, step: sorted(one(rank, step) + two(rank, step))
                draw.truths.append(Truth(("dataloader-stall" if second == "loader" else "host-stall",)))
                draw.parts = [{"pauses": one}, {"pauses": two}]
        elif kind in ("faults2", "faults3"):
            self.combine(draw, rng, int(kind[-1]))
        elif kind == "jitter":
            draw.jitter = rng.uniform(0.02, 0.06)
        elif kind.startswith("noise"):
            spread = float(kind[5:]) / 100
            noise = {(r, s): rng.gauss(1, spread) for r in range(ranks) for s in range(FIRST + draw.steps + 1)}
            draw.factor = lambda rank, step, event: noise[rank, step]
        return draw

    def combine(self, draw: Draw, rng: random.Random, count: int) -> None:
        """Several faults of different kinds, on different ranks where they are of one rank."""
        ranks = len(self.base(draw.base).ranks)
        slow = rng.sample(range(ranks), count)
        once = rng.choice(range(FIRST, FIRST + draw.steps - 1))
        parts: list[dict[str, Any]] = []
        for kind, rank in zip(rng.sample(sorted(COMBINED), count), slow, strict=True):
            at = self.place(rng, draw.base, {"loader_on_all": "loader", "host": "optend"}.get(kind, "fwend"))
            us, factor = rng.uniform(20e3, 100e3), rng.uniform(1.3, 2.5)
            parts.append(fault(kind, rank, once, at, us, factor))
            in_one = once - FIRST if kind in IN_ONE_STEP else None
            draw.truths.append(Truth(COMBINED[kind], (rank,) if kind in OF_ONE_RANK else None, once=in_one))

        def pauses(rank: int, step: int) -> list[tuple[float, float]]:
            return sorted(pause for part in parts if "pauses" in part for pause in part["pauses"](rank, step))

        draw.parts, draw.pauses = parts, pauses
        draw.factor = lambda rank, step, event: math.prod(
            part["kf"](rank, step, event) for part in parts if "kf" in part
        )
        draw.transfer = lambda step, one, rank=0: math.prod(part["cf"](step, one) for part in parts if "cf" in part)


def fault(kind: str, slow: int, once: int, at: Callable[[int], float], us: float, factor: float) -> dict[str, Any]:
    """A fault of `COMBINED`, as options of the simulation."""
    if kind == "stall":
        return {"pauses": lambda rank, step: [(at(rank), us)] if rank == slow else []}
    if kind == "device":
        return {"kf": lambda rank, step, event: factor if rank == slow else 1.0}
    if kind == "rare_stall":
        return {"pauses": lambda rank, step: [(at(rank), 4 * us)] if (rank, step) == (slow, once) else []}
    if kind == "device_once":
        return {"kf": lambda rank, step, event: 1 + factor if step == once else 1.0}
    if kind == "network_once":
        return {"cf": lambda step, collective: 20 * factor if (step, collective) == (once, 3) else 1.0}
    return {"pauses": lambda rank, step: [(at(rank), us)]}


def in_pairs(collective: int, rank: int) -> range:
    """Every other collective is one of the ranks of a node alone."""
    return range(8) if collective % 2 else range(rank // 2 * 2, rank // 2 * 2 + 2)


def group(base: Any) -> None:
    """Say so in its records."""
    for number, rank in enumerate(base.ranks):
        pair = list(in_pairs(0, number))
        said = {"Process Group Name": f"pair{number // 2}", "Process Group Ranks": str(pair), "Group size": 2}
        calls = [call for call in rank["host"] if call["e"]["name"] == "record_param_comms"]
        record = [call["e"] for call in sorted(calls, key=lambda call: float(call["ts"]))]
        for events in ([one["e"] for one in rank["comm"]], record):
            for event in events[::2] if len(events) == len(base.T) else []:
                event["args"] = event["args"] | {key: value for key, value in said.items() if key in event["args"]}


def quick(simulation: Any) -> Any:
    """The simulation, whose pauses are summed once for each step, and not for each event."""

    class Quick(simulation):  # type: ignore[misc]
        def warp(self, rank: int, step: int, at: float) -> float:
            pauses = self.pa[rank][step]
            known = self.__dict__.setdefault("sums", {}).get((rank, step))
            if known is None or known[2] != len(pauses):
                known = [p[0] for p in pauses], list(accumulate((p[1] for p in pauses), initial=0.0)), len(pauses)
                self.sums[rank, step] = known
            return at + known[1][bisect_right(known[0], at)]

    return Quick


def longest(draw: Draw) -> Draw:
    """The twin is played for as many steps as any of its jobs."""
    steps = max(6, 2 * draw.period)
    return Draw(draw.kind, draw.base, steps, [], mode=draw.mode, period=draw.period, queue=draw.queue)


#: Kinds of jobs, and how often each is drawn.
KINDS = {
    "stall": 4,
    "stall_in_some_steps": 4,
    "stall_varies": 2,
    "slow_device": 2,
    "slow_kernels": 2,
    "device_in_some_steps": 3,
    "moving": 4,
    "several": 2,
    "most": 2,
    "node": 2,
    "nodes": 2,
    "loader_on_all": 2,
    "stall_on_all": 2,
    "stall_on_all_once": 2,
    "device_on_all_once": 1,
    "slow_network": 1,
    "network_once": 2,
    "two_faults": 4,
    "faults2": 6,
    "faults3": 2,
    "accumulation": 3,
    "accumulation_on_device": 2,
    "queue0": 2,
    "short_queue": 1,
    "paced": 2,
    "skewed": 2,
    "hidden_other": 1,
    "hidden_two": 1,
    "hidden_slow": 2,
    "late": 1,
    "renamed": 1,
    "pairs": 2,
    "slow_pair": 1,
    "jitter_and_stall": 1,
    "noise_and_stall": 2,
    "healthy": 1,
    "jitter": 2,
    "noise2": 12,
    "noise6": 5,
}
#: Kinds with a host of one rank that stalls in every step.
STALLS = {"stall", "accumulation", "queue0", "short_queue", "paced", "skewed", "late", "renamed", "pairs"}
STALLS |= {"hidden_other", "hidden_two", "hidden_slow", "jitter_and_stall", "noise_and_stall"}
#: Faults that are combined, and what names them.
COMBINED = {
    "stall": ("straggler",),
    "device": ("straggler",),
    "rare_stall": SLOW,
    "loader_on_all": ("dataloader-stall",),
    "host": ("host-stall",),
    "device_once": ("slow-step",),
    "network_once": ("slow-step", "variable-transfers"),
}
OF_ONE_RANK = ("stall", "device", "rare_stall")
IN_ONE_STEP = ("rare_stall", "device_once", "network_once")
HEALTHY = ("healthy", "jitter", "noise2", "noise6")


def examined(folder: Path, cache: Cache) -> Seen:
    """What the doctor says, with its rules and without."""
    (run,) = discover(folder)
    result = engine.diagnose(run, reading=engine.Reading(cache=cache))
    account = result.diagnosis.account
    bare = Savings([], WhatIf.of(result.job), result.job).account
    unexplained = bare.line("unexplained")
    return Seen(
        verdict=result.diagnosis.verdict,
        findings=result.diagnosis.findings,
        step=result.diagnosis.step_ms,
        floor=account.line("floor").ms,
        tracing=account.line("tracing").ms,
        unexplained=unexplained.ms,
        unexplained_share=unexplained.share,
        tracing_without_rules=bare.line("tracing").ms,
        contradictions=result.diagnosis.contradictions,
        headline_saves=headline_saves(result.diagnosis),
        held_by_one=result.savings.share_of_named_owner if result.diagnosis.verdict == "unexplained" else 0.0,
        left_out=left_out(result.job, len(result.job.digests[0].steps)),
    )


def left_out(job: Job, recorded: int) -> int:
    """How many of the first recorded steps the doctor left out; 0 where it left out any others."""
    place = job.step_index[0].tolist()
    is_the_rest = len(job.digests[0].steps) == recorded and place == list(range(place[0], recorded))
    return place[0] if is_the_rest else 0


@dataclass(frozen=True)
class Row:
    """A job, graded; errors in percent of its step."""

    known: Known
    seen: Seen
    twin: Seen

    @property
    def is_faulty(self) -> bool:
        return self.known.true_ms > FAULTY * self.known.step_ms

    @property
    def is_healthy(self) -> bool:
        return self.known.kind in HEALTHY

    def percent(self, ms: float) -> float:
        return 100 * ms / self.known.step_ms

    @property
    def cost_error(self) -> float:
        return self.percent(self.seen.said - self.twin.said - self.known.true_ms)

    @property
    def floor_error(self) -> float:
        return self.percent(self.seen.floor + self.twin.said - (self.known.step_ms - self.known.true_ms))

    @property
    def floor_and_tracing_error(self) -> float:
        return self.percent(self.seen.floor + self.seen.tracing - (self.known.step_ms - self.known.true_ms))

    @property
    def unexplained_error(self) -> float:
        seen = self.seen.unexplained + self.seen.tracing_without_rules
        usual = self.twin.unexplained + self.twin.tracing_without_rules
        return self.percent(seen - usual - self.known.true_ms)

    def false(self, findings: Sequence[Finding]) -> list[Finding]:
        """Those that name no fault of the job, and are not of its twin."""
        usual = {finding.rule for finding in self.twin.loud}
        return [
            finding
            for finding in findings
            if finding.rule not in usual and not any(truth.fits(finding) for truth in self.known.truths)
        ]

    @property
    def missed(self) -> list[Truth]:
        return [truth for truth in self.known.truths if truth.required and not truth.is_found(self.seen.loud)]

    @property
    def is_right(self) -> bool:
        return not self.missed and not self.false(self.seen.loud)

    @property
    def is_unexplained_though_known(self) -> bool:
        """Whether no rule names what the unexplained line itself names by owner, phase and ranks."""
        return not self.is_healthy and self.seen.held_by_one >= MOST_HELD

    @property
    def in_range(self) -> bool | None:
        """Whether the range of the costliest finding holds what is left of the true cost without the others."""
        if not self.seen.loud:
            return None
        main = self.seen.loud[0]
        left = self.known.true_ms + self.twin.said - (self.seen.said - main.cost_ms)
        return main.range_ms[0] <= left <= main.range_ms[1]

    def faults(self) -> Iterator[str]:
        """What is wrong with the answer."""
        if self.is_faulty and self.seen.verdict in ("healthy", "unknown"):
            yield self.seen.verdict
        if self.is_faulty:
            yield from (f"misses {'/'.join(truth.rules)} {truth.ranks or ''}" for truth in self.missed)
        if self.is_unexplained_though_known:
            yield f"unexplained though one owner, phase and set of ranks holds {self.seen.held_by_one:.0%} of it"
        yield from self.seen.contradictions
        if self.seen.headline_saves < HEADLINE_SAVES:
            yield f"the headline's fix saves {self.seen.headline_saves:.0%} of what it says"
        for finding in self.false(self.seen.loud):
            yield f"false {finding.rule} {finding.ranks} {finding.cost_ms:.1f} {finding.confidence}"
        if self.is_faulty and self.known.is_visible:
            if abs(self.cost_error) > 5:
                yield f"costs {self.cost_error:+.1f} %"
            if abs(self.floor_error) > 5:
                yield f"floor {self.floor_error:+.1f} %"
            if abs(self.unexplained_error) > 8:
                yield f"unexplained {self.unexplained_error:+.1f} %"


def bars(rows: Sequence[Row]) -> Iterator[tuple[str, str, str, bool]]:
    """What is measured, the bar, the value, and whether it is reached."""
    faulty = [row for row in rows if row.is_faulty and not row.is_healthy]
    told = [row for row in faulty if row.known.is_visible]

    def of(name: str, right: Sequence[bool], least: float, most: float = 1.0) -> tuple[str, str, str, bool]:
        share = sum(right) / len(right) if right else 1.0
        bar = f"{least:.0%}" if most == 1 else f"{least:.0%} to {most:.0%}"
        return name, bar, f"{sum(right)} of {len(right)} ({share:.0%})", least <= share <= most or not right

    def errors(name: str, values: Sequence[float], median: float, worst: float) -> tuple[str, str, str, bool]:
        sizes = np.abs(values) if len(values) else np.zeros(1)
        middle, largest = float(np.median(sizes)), float(sizes.max())
        bar = f"median {median:g} %" + (f", worst {worst:g} %" if worst < 100 else "")
        value = f"median {middle:.2f} %, 80 % {np.quantile(sizes, 0.8):.2f} %, worst {largest:.1f} %"
        return name, bar, value, middle <= median and largest <= worst

    yield of("faulty: neither healthy nor unknown", [r.seen.verdict not in ("healthy", "unknown") for r in faulty], 1)
    high = [(row, finding) for row in rows for finding in row.seen.loud if finding.confidence == "high"]
    yield of("high confidence: true rule and ranks", [not row.false([finding]) for row, finding in high], 0.95)
    yield of("faulty: right rules and ranks", [row.is_right for row in faulty], 0.95)
    one = [row for row in told if len(row.known.truths) == 1]
    yield of("80 % range holds the true cost", [row.in_range for row in one if row.in_range is not None], 0.75, 0.9)
    yield errors("cost, of the step", [row.cost_error for row in told], 5, 15)
    yield errors("floor + the twin's tracing", [row.floor_error for row in told], 3, 8)
    yield errors("floor + tracing (for comparison)", [row.floor_and_tracing_error for row in told], 100, 1000)
    yield errors("rules off: unexplained", [row.unexplained_error for row in told], 5, 1000)
    off = [row.seen.unexplained_share >= MOST_UNEXPLAINED for row in told]
    yield of("rules off: verdict unexplained", off, 1)
    for kind in HEALTHY[:3]:
        yield of(f"{kind}: healthy", [r.seen.verdict == "healthy" for r in rows if r.known.kind == kind], 1)
    six = [row for row in rows if row.known.kind == "noise6"]
    yield of("noise6: no high confidence", [all(f.confidence != "high" for f in row.seen.loud) for row in six], 1)
    noisy = [row for row in rows if row.is_healthy]
    yield of("no contradiction between witnesses", [not row.seen.contradictions for row in rows], 1)
    known = [not row.is_unexplained_though_known for row in rows]
    yield of("never unexplained where one owner holds most", known, 1)
    saves = [row.seen.headline_saves >= HEADLINE_SAVES for row in rows]
    yield of("the headline's fixes save 80 % of what it says", saves, 1)
    yield of("noise: no false finding above info", [not row.false(row.seen.loud) for row in noisy], 1)


def numbered(seed: int, number: int) -> tuple[random.Random, str, str]:
    """What draws a job, its kind and its name."""
    rng = random.Random(f"{seed}:{number}")
    return rng, rng.choices(list(KINDS), list(KINDS.values()))[0], f"{seed}-{number}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shared", type=Path)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first job")
    parser.add_argument("--only", choices=list(KINDS), help="jobs of this kind alone")
    parser.add_argument("--keep", type=Path, help="where traces and digests stay")
    options = parser.parse_args(arguments)
    folder = options.keep or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    cache = Cache(folder / "cache" if options.keep else None)
    player = Player(options.shared, folder)
    console = Console(width=150)
    rows: list[Row] = []
    twins: dict[str, Seen] = {}
    try:
        for number in range(options.first, options.first + options.jobs):
            rng, kind, name = numbered(options.seed, number)
            if options.only not in (None, kind):
                continue
            written = folder / f"{name}.json"
            known = read(written) if written.exists() else player.write(player.draw(kind, rng), name)
            if known.twin not in twins:
                twins[known.twin] = examined(folder / known.twin, cache)
            seen = examined(folder / name, cache)
            rows.append(Row(known.without_first(seen.left_out), seen, twins[known.twin]))
            if not options.keep:
                shutil.rmtree(folder / name)
            if faults := list(rows[-1].faults()):
                row = rows[-1]
                console.print(
                    f"{name} {kind}, step {row.known.step_ms:.1f} ms, true {row.known.true_ms:.1f}: "
                    f"{row.seen.verdict}; "
                    f"{'; '.join(faults)}",
                    highlight=False,
                    soft_wrap=True,
                )
    finally:
        if not options.keep:
            shutil.rmtree(folder)
    by_kind = defaultdict(list)
    for row in rows:
        by_kind[row.known.kind].append(row)
    table = Table("kind", "jobs", "faulty", "right", "false findings", "worst cost error %", box=None)
    for kind, mine in by_kind.items():
        faulty = [row for row in mine if row.is_faulty and not row.is_healthy]
        false = sum(bool(row.false(row.seen.loud)) for row in mine)
        worst = max((abs(row.cost_error) for row in faulty if row.known.is_visible), default=0.0)
        right = str(sum(row.is_right for row in faulty))
        table.add_row(kind, str(len(mine)), str(len(faulty)), right, str(false), f"{worst:.1f}")
    console.print(table)
    return print_bars(console, bars(rows))


def read(path: Path) -> Known:
    """What was written beside a job's traces."""
    stored = json.loads(path.read_text())
    stored["truths"] = tuple(
        Truth(**one | {"rules": tuple(one["rules"]), "ranks": one["ranks"] and tuple(one["ranks"])})
        for one in stored["truths"]
    )
    stored["rest_ms"] = tuple(stored["rest_ms"])
    return Known(**stored)


if __name__ == "__main__":
    sys.exit(main())
