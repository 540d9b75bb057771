"""How right the doctor is on a stuck job where one rank's Flight Recorder dump is damaged.

    python benchmarks/damaged_dumps.py [JOBS ...] [--variants 500] [--from 0] [--seed 0]

Each of JOBS is a folder with the dumps of one job; by default those of `tests/flight_recorder`, and made-up jobs of
eight ranks: one that never came, one that stopped within a collective, one of another size, and one in which all runs.
A variant is one rank's dump, damaged in one of the ways below, with all others whole. Grades:

    right             the verdict and the ranks are those of the whole job, or of the job without that dump
    unknown           no rank is accused, and the verdict is not healthy
    wrong with a word anything else, but a warning names the file or its rank
    wrong in silence  anything else
"""

from __future__ import annotations

import argparse
import copy
import pickle
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.flight.load import DumpError, load
from tb_ddp_doctor.flight.model import Dump
from tb_ddp_doctor.storage.unpickle import loads
from tb_ddp_doctor.stuck.build import build
from tb_ddp_doctor.stuck.model import StuckRun

Content = dict[str, Any]
Random = np.random.Generator


class Given(NamedTuple):
    """What a damaged dump is made of: the rank's own, and that of another rank."""

    own: Content
    other: Content
    random: Random


Damage = Callable[[Given], Content]

REAL = Path(__file__).parent.parent / "tests" / "flight_recorder"
START_NS = 1_758_610_505_000_000_000
RIGHT, UNKNOWN, SAID, SILENT = GRADES = ("right", "unknown", "wrong with a word", "wrong in silence")
LEAST = 0.95


def no_entries(given: Given) -> Content:
    return given.own | {"entries": []}


def nothing(given: Given) -> Content:
    status = {key: dict.fromkeys(one, -1) for key, one in given.own.get("pg_status", {}).items()}
    return given.own | {"entries": [], "pg_status": status}


def no_status(given: Given) -> Content:
    return {key: value for key, value in given.own.items() if key != "pg_status"}


def no_groups(given: Given) -> Content:
    return given.own | {"pg_config": {}}


def end_lost(given: Given) -> Content:
    """The newest entries, as a copy that was cut has it; the counters of groups are whole."""
    return given.own | {
        "entries": given.own["entries"][: -int(given.random.integers(1, max(len(given.own["entries"]), 2)))]
    }


def gap(given: Given) -> Content:
    entries = given.own["entries"]
    first = int(given.random.integers(max(len(entries), 1)))
    last = first + int(given.random.integers(1, max(len(entries) // 2, 2)))
    return given.own | {"entries": entries[:first] + entries[last:]}


def one_lost(given: Given) -> Content:
    entries = list(given.own["entries"])
    if entries:
        entries.pop(int(given.random.integers(len(entries))))
    return given.own | {"entries": entries}


def pending_lost(given: Given) -> Content:
    return given.own | {"entries": [entry for entry in given.own["entries"] if entry["state"] == "completed"]}


def stale(given: Given) -> Content:
    """As the rank would have written it some entries earlier: the last few were pending then."""
    entries = copy.deepcopy(given.own["entries"][: -int(given.random.integers(1, max(len(given.own["entries"]), 2)))])
    for entry in entries[-int(given.random.integers(1, 4)) :]:
        entry |= {"state": "scheduled", "time_discovered_completed_ns": None, "retired": False}
    status = {}
    for key, one in given.own.get("pg_status", {}).items():
        mine = [entry for entry in entries if str(entry["pg_id"]) == str(key)]
        newest = max((entry["collective_seq_id"] for entry in mine), default=-1)
        done = max((entry["collective_seq_id"] for entry in mine if entry["state"] == "completed"), default=-1)
        status[key] = one | {"last_enqueued_collective": newest, "last_completed_collective": done}
    return given.own | {"entries": entries, "pg_status": status}


def states(state: str) -> Damage:
    def damage(given: Given) -> Content:
        return given.own | {"entries": [entry | {"state": state} for entry in given.own["entries"]]}

    return damage


def doubled(given: Given) -> Content:
    return given.own | {"entries": [*given.own["entries"], *given.own["entries"]]}


def shuffled(given: Given) -> Content:
    return given.own | {
        "entries": [given.own["entries"][i] for i in given.random.permutation(len(given.own["entries"]))]
    }


def times_shifted(given: Given) -> Content:
    by = int(given.random.integers(-(10**12), 10**12))
    return given.own | {
        "entries": [entry | {"time_created_ns": entry["time_created_ns"] + by} for entry in given.own["entries"]]
    }


def anothers(given: Given) -> Content:
    return given.other


def anothers_entries(given: Given) -> Content:
    return given.other | {"pg_config": given.own["pg_config"]}


DAMAGES: dict[str, Damage] = {
    "no entries": no_entries,
    "nothing recorded": nothing,
    "no status": no_status,
    "no groups": no_groups,
    "end lost": end_lost,
    "end lost, no status": lambda given: no_status(given._replace(own=end_lost(given))),
    "a gap": gap,
    "one entry lost": one_lost,
    "what is pending lost": pending_lost,
    "older": stale,
    "all completed": states("completed"),
    "all scheduled": states("scheduled"),
    "entries twice": doubled,
    "entries in any order": shuffled,
    "another clock": times_shifted,
    "another rank's": anothers,
    "another rank's entries": anothers_entries,
}


# ----------------------------------------------------------------------------------------------- made-up jobs


def made_up(ranks: int = 8, completed: int = 60) -> dict[str, dict[int, Content]]:
    """The dumps of some jobs of one group: what each rank enqueued, and how much of it has completed."""

    def job(enqueued: dict[int, int], done: dict[int, int], sizes: dict[int, int]) -> dict[int, Content]:
        return {
            rank: _dump(
                rank, ranks, enqueued.get(rank, completed + 1), done.get(rank, completed), sizes.get(rank, 4096)
            )
            for rank in range(ranks)
        }

    alive = dict.fromkeys(range(ranks), completed)
    return {
        "never came": job({5: completed}, {}, {}),
        "stopped within": job({}, {rank: completed + 1 for rank in range(ranks) if rank != 2}, {}),
        "another size": job({}, {}, {3: 1024}),
        "all runs": job(alive, alive, {}),
    }


def _dump(rank: int, ranks: int, enqueued: int, done: int, size: int) -> Content:
    return {
        "version": "2.9",
        "nccl_version": "2.27.3",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}},
        "pg_status": {
            "0": {
                "last_enqueued_collective": enqueued,
                "last_started_collective": -1,
                "last_completed_collective": done,
            }
        },
        "entries": [
            {
                "record_id": i,
                "pg_id": 0,
                "process_group": ("0", "default_pg"),
                "collective_seq_id": i + 1,
                "p2p_seq_id": 0,
                "op_id": i + 1,
                "profiling_name": "nccl:all_reduce",
                "time_created_ns": START_NS + i * 10**9 + rank * 1000 + 137,  # as recorders do: not whole µs
                "input_sizes": [[size if i + 1 > done else 4096]],
                "input_dtypes": ["Float"],
                "output_sizes": [[size if i + 1 > done else 4096]],
                "output_dtypes": ["Float"],
                "state": "completed" if i < done else "scheduled",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": START_NS + i * 10**9 + 10**8 if i < done else None,
                "retired": i < done,
                "timeout_ms": 600_000,
                "is_p2p": False,
                "frames": [],
            }
            for i in range(enqueued)
        ],
    }


# -------------------------------------------------------------------------------------------------- answers


def examined(job: dict[int, Content], folder: Path) -> StuckRun:
    dumps: list[Dump] = []
    warnings = []
    for rank, content in job.items():
        path = folder / f"nccl_trace_rank_{rank}"
        path.write_bytes(pickle.dumps(content, protocol=2))
        try:
            dumps.append(load(path, rank))
        except DumpError as error:
            warnings.append(FileWarning(str(path), str(error)))
    return build("job", dumps, warnings)


def answer(run: StuckRun) -> tuple[str, frozenset[int]]:
    return run.verdict, frozenset(rank for finding in run.findings for rank in finding.ranks)


def grade(found: StuckRun, rank: int, accepted: list[StuckRun]) -> str:
    if answer(found) in [answer(run) for run in accepted]:
        return RIGHT
    if found.verdict == "unknown":
        return UNKNOWN
    named = re.compile(rf"\brank_?s? ?(\d+, )*{rank}\b|rank_{rank}\b")
    return SAID if any(named.search(one.message) or named.search(one.file) for one in found.warnings) else SILENT


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=Path, nargs="*")
    parser.add_argument("--variants", type=int, default=500)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    jobs = made_up()
    for folder in options.jobs or sorted(path for path in REAL.iterdir() if path.is_dir()):
        jobs[folder.name] = _read(folder)
    results: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        whole = {name: examined(job, folder) for name, job in jobs.items()}
        for number in range(options.first, options.first + options.variants):
            random = np.random.default_rng([options.seed, number])
            name = list(jobs)[random.integers(len(jobs))]
            kind = list(DAMAGES)[number % len(DAMAGES)]
            job = jobs[name]
            rank, other = (int(one) for one in random.choice(sorted(job), 2, replace=False))
            damaged = DAMAGES[kind](Given(copy.deepcopy(job[rank]), copy.deepcopy(job[other]), random))
            found = examined(job | {rank: damaged}, folder)
            left = examined({one: content for one, content in job.items() if one != rank}, folder)
            given = grade(found, rank, [whole[name], left])
            results[kind, given] += 1
            if given in (SAID, SILENT):
                print(f"{number}: {name}, {kind}, rank {rank}: {given} | {found.headline[:110]}", flush=True)
    print(f"{'':26}" + "".join(f"{name:>20}" for name in GRADES))
    for kind in [*DAMAGES, "all"]:
        counts = [sum(n for (k, g), n in results.items() if g == one and kind in (k, "all")) for one in GRADES]
        print(f"{kind:26}" + "".join(f"{count:20}" for count in counts))
    good = sum(n for (_, g), n in results.items() if g in (RIGHT, UNKNOWN)) / max(results.total(), 1)
    print(f"right or unknown: {good:.1%}")
    return 0 if good >= LEAST and not any(n for (_, g), n in results.items() if g == SILENT) else 1


def _read(folder: Path) -> dict[int, Content]:
    found = {}
    for path in folder.iterdir():
        if rank := re.search(r"(\d+)$", path.name):
            data = path.read_bytes()
            found[int(rank[1])] = loads(data) if data[:1] == b"\x80" else msgspec.json.decode(data)
    return found


if __name__ == "__main__":
    sys.exit(main())
