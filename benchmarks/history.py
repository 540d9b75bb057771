"""How well the summary of step times finds what simulated days have: 16 ranks on 4 nodes, steps of 4 s.

    python benchmarks/history.py [SEEDS] [--first SEED] [--misses]
    python benchmarks/history.py --large RANKS STEPS FOLDER [--times N]

An event is found if its kind, its rank or node, its time within 1 % of the day and its cost within 10 % are right. The
true cost is that of the same day, with the same noise, without the event. --large writes files of many ranks into a
folder, once, and says what it takes to summarise them, and with --times, what it takes to open and summarise the kept
pyramids of N times as many steps: STEPS is a multiple of 64 then.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from whole_history import whole

from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.history import blocks
from tb_ddp_doctor.history.events import Event
from tb_ddp_doctor.history.job import JobHistory
from tb_ddp_doctor.history.pyramid import joined
from tb_ddp_doctor.history.read import RankHistory, Stretch, history_files
from tb_ddp_doctor.history.summary import summarise
from tb_ddp_doctor.history.windows import WindowPart, read_job

RANKS, RANKS_A_NODE, STEPS = 16, 4, 21_600
START_NS = 1_790_000_000 * 10**9
BUSY_US, REST_US = 3_000_000.0, 1_000_000.0

#: Ranks of `large` with noise of their own.
_DISTINCT = 64

Busy = NDArray[np.float64]


class Truth(NamedTuple):
    """One thing that a day has: its kind, ranks, first step or period, and what it adds to (ranks, steps), µs."""

    kind: str
    ranks: tuple[int, ...]
    first: int | None
    every: int | None
    added_us: Busy


def drift(random: np.random.Generator) -> Truth:
    added = np.zeros((RANKS, STEPS))
    added += np.linspace(0, random.uniform(0.03, 0.12) * BUSY_US, STEPS)
    return Truth("drift", tuple(range(RANKS)), None, None, added)


def leak(random: np.random.Generator) -> Truth:
    added = np.zeros((RANKS, STEPS))
    rank = int(random.integers(RANKS))
    added[rank] = np.linspace(0, random.uniform(0.06, 0.15) * BUSY_US, STEPS)
    return Truth("drift", (rank,), None, None, added)


def garbage(random: np.random.Generator) -> Truth:
    added = np.zeros((RANKS, STEPS))
    every = int(random.integers(100, 400))
    for rank in range(RANKS):
        added[rank, int(random.integers(every)) :: every] = 1_200_000 * random.uniform(0.9, 1.1)
    return Truth("period", tuple(range(RANKS)), None, every, added)


def change(ranks: Callable[[np.random.Generator], tuple[int, ...]]) -> Callable[[np.random.Generator], Truth]:
    def made(random: np.random.Generator) -> Truth:
        added = np.zeros((RANKS, STEPS))
        first = int(random.uniform(0.1, 0.9) * STEPS)
        named = ranks(random)
        added[list(named), first:] = random.uniform(0.05, 0.12) * BUSY_US
        return Truth("change", named, first, None, added)

    return made


def bad_hours(random: np.random.Generator) -> Truth:
    added = np.zeros((RANKS, STEPS))
    first = int(random.uniform(0.1, 0.6) * STEPS)
    added[:, first : first + STEPS // 8] = random.uniform(0.05, 0.12) * BUSY_US
    return Truth("change", tuple(range(RANKS)), first, None, added)


def one_rank(random: np.random.Generator) -> tuple[int, ...]:
    return (int(random.integers(RANKS)),)


def one_node(random: np.random.Generator) -> tuple[int, ...]:
    first = int(random.integers(RANKS // RANKS_A_NODE)) * RANKS_A_NODE
    return tuple(range(first, first + RANKS_A_NODE))


def all_ranks(_random: np.random.Generator) -> tuple[int, ...]:
    return tuple(range(RANKS))


Day = tuple[Callable[[np.random.Generator], Truth], ...]
DAYS: dict[str, Day] = {
    "quiet": (),
    "quiet, variable steps": (),
    "quiet, restarts": (),
    "drift of all": (drift,),
    "leak on a rank": (leak,),
    "garbage collection": (garbage,),
    "change on a rank": (change(one_rank),),
    "change on a node": (change(one_node),),
    "change on all": (change(all_ranks),),
    "three bad hours": (bad_hours,),
    "variable steps, change on a rank": (change(one_rank),),
    "restarts, change on a rank": (change(one_rank),),
    "all at once": (drift, garbage, change(one_rank), change(one_node), bad_hours),
}


def simulated(name: str, seed: int, steps: int = STEPS) -> tuple[list[RankHistory], list[tuple[Truth, float]]]:
    """A day's files, and what it has, each with its cost in s."""
    random = np.random.default_rng([seed, *name.encode()])
    slow = np.zeros(steps)
    pushes = random.normal(0, 0.001 * np.sqrt(1 - 0.99**2), steps)
    for step in range(1, steps):
        slow[step] = 0.99 * slow[step - 1] + pushes[step]
    lengths = random.lognormal(0, 0.15, steps) if "variable" in name else np.ones(steps)
    own = 1 + random.normal(0, 0.003, (RANKS, 1))
    busy = BUSY_US * (lengths + slow) * own * (1 + random.normal(0, 0.01, (RANKS, steps)))
    rest = REST_US * (1 + np.abs(random.normal(0, 0.005, steps)))
    truths = [make(random) for make in DAYS[name]]
    total = busy + sum((truth.added_us for truth in truths), np.zeros(1))
    slowest = total.max(axis=0)
    costs = [float((slowest - (total - truth.added_us).max(axis=0)).sum()) / 1e6 for truth in truths]
    step_us = np.rint(slowest + rest).astype(np.uint32)
    edges = [0, steps // 3, 2 * steps // 3, steps] if "restarts" in name else [0, steps]
    files = []
    for rank in range(RANKS):
        begin_ns = START_NS
        for first, last in itertools.pairwise(edges):
            # A restart trains the last hundred steps again, after ten minutes.
            again = max(first - 100, 0)
            begin_ns += 600 * 10**9 if first else 0
            own_us = np.rint(total[rank, again:last]).astype(np.uint32)
            stretch = Stretch(again, begin_ns, step_us[again:last], own_us)
            node = f"node{rank // RANKS_A_NODE}"
            files.append(RankHistory(Path(), rank, RANKS, node, begin_ns, [stretch], [], 0))
            begin_ns += int(step_us[again:last].sum(dtype=np.int64)) * 1000
    return files, list(zip(truths, costs, strict=True))


def is_found(truth: Truth, cost_s: float, event: Event) -> bool:
    return (
        event.kind == truth.kind
        and event.ranks == truth.ranks
        and (truth.first is None or abs(event.first_step - truth.first) <= STEPS / 100)
        and (truth.every is None or event.every == truth.every)
        and abs(event.cost_s - cost_s) <= 0.1 * cost_s
    )


def large(ranks: int, steps: int, folder: Path) -> None:
    """Write files of many ranks, eight a node, of which the last becomes slower; print what it takes to read them."""
    if not (folder / blocks.FOLDER).is_dir():
        (folder / blocks.FOLDER).mkdir(parents=True)
        random = np.random.default_rng(0)
        noise = random.normal(1, 0.01, 2 * steps)
        length = np.rint(1.15 * BUSY_US * (1 + np.abs(random.normal(0, 0.002, steps))) + REST_US).astype(np.uint32)
        begins_ns = START_NS + 1000 * np.concatenate(([0], np.cumsum(length, dtype=np.int64)))
        bodies: list[bytes] = []
        for rank in range(ranks):
            if rank < _DISTINCT or rank == ranks - 1:
                at = int(random.integers(steps))
                busy = BUSY_US * noise[at : at + steps]
                busy[steps // 2 :] *= 1.1 if rank == ranks - 1 else 1
                # A minute of steps a block.
                bodies.append(
                    b"".join(
                        blocks.steps_block(
                            first, int(begins_ns[first]), length[first : first + 60], busy[first : first + 60]
                        )
                        for first in range(0, steps, 60)
                    )
                )
            head = blocks.file_head(rank, ranks, START_NS, f"node{rank // 8}")
            body = bodies[-1] if rank == ranks - 1 else bodies[rank % _DISTINCT]
            (folder / blocks.FOLDER / f"rank{rank:05d}{blocks.SUFFIX}").write_bytes(head + body)
    cache = Cache(folder / "cache")
    for which in ("first", "again"):
        began, cpu = time.perf_counter(), _cpu_s()
        job, _ = read_job(history_files(folder), cache)
        assert job is not None
        read = time.perf_counter()
        events = summarise(job).events
        ended, peak = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(f"{which}: read in {read - began:.1f} s, summarised in {ended - read:.1f} s,", end=" ")
        found = [(event.kind, event.ranks, event.first_step) for event in events]
        print(f"{_cpu_s() - cpu:.1f} s of CPU, peak {peak:.2f} GB; {found}", flush=True)


class _Parts:
    """The kept parts of a job, in order."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.found: list[WindowPart] = []

    def part(self, key: str) -> WindowPart | None:
        part = self._cache.part(key)
        self.found += [part] if part else []
        return part

    def keep_part(self, part: WindowPart, key: str) -> None:
        self.found.append(part)
        self._cache.keep_part(part, key)


def many_steps(folder: Path, times: int) -> None:
    """Keep the pyramid of a job of `large` so many times, as one of a longer job; print what it takes to open that."""
    cache = Cache(folder / "cache")
    parts = _Parts(cache)
    read_job(history_files(folder), parts)
    keys = [f"{turn} {number}" for turn in range(times) for number in range(len(parts.found))]
    for key in keys:
        cache.keep_part(parts.found[int(key.split()[1])], key)
    parts.found.clear()
    began, cpu = time.perf_counter(), _cpu_s()
    kept = [part for key in keys if (part := cache.part(key))]
    assert len(kept) == len(keys)
    pyramid = joined([part.pyramid for part in kept])
    read = time.perf_counter()
    summarise(JobHistory(pyramid, (), (), 0.0, 0, 0))
    ended, peak = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{len(pyramid.steps.length_us):,} steps: opened in {read - began:.1f} s, summarised in", end=" ")
    print(f"{ended - read:.1f} s, {_cpu_s() - cpu:.1f} s of CPU, peak {peak:.2f} GB")


def _cpu_s() -> float:
    """CPU time of this process and of those that it started, s."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("seeds", type=int, nargs="?", default=200)
    arguments.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed")
    arguments.add_argument("--misses", action="store_true", help="print what was said instead")
    arguments.add_argument("--large", nargs=3, metavar=("RANKS", "STEPS", "FOLDER"), help="time and memory of many")
    arguments.add_argument("--times", type=int, metavar="N", help="with --large: so many times as many steps, kept")
    options = arguments.parse_args()
    if options.large:
        ranks, steps, folder = int(options.large[0]), int(options.large[1]), Path(options.large[2])
        many_steps(folder, options.times) if options.times else large(ranks, steps, folder)
        return
    for name in DAYS:
        began = time.perf_counter()
        found = there = said = within = 0
        for seed in range(options.first, options.first + options.seeds):
            files, truths = simulated(name, seed)
            events = summarise(whole(files)).events
            found_as = [
                next((event for event in events if is_found(truth, cost_s, event)), None) for truth, cost_s in truths
            ]
            right = [event is not None for event in found_as]
            within += sum(
                event is not None and min(event.range_s) <= cost_s <= max(event.range_s)
                for event, (_, cost_s) in zip(found_as, truths, strict=True)
            )
            found, there, said = found + sum(right), there + len(right), said + len(events)
            if options.misses and (not all(right) or len(events) > len(truths)):
                for (truth, cost_s), ok in zip(truths, right, strict=True):
                    print(seed, "found" if ok else "missed", truth[:4], round(cost_s))
                for event in events:
                    print("   ", event)
        seconds = (time.perf_counter() - began) / options.seeds
        ranges = f"{within:4} ranges hold the cost"
        print(
            f"{name:35} {found:4} of {there:4} found, {ranges}, {said - found:3} more said, {seconds:.2f} s", flush=True
        )


if __name__ == "__main__":
    main()
