"""How right the doctor is where the file of one rank is damaged.

    python benchmarks/damaged.py CORPUS [--jobs NAME ...] [--kinds NAME ...] [--ranks all|some|first]

CORPUS is as for accuracy.py. The file of each rank ("some": of the first and of those named as slow) is cut, stripped
or changed in every way below, with all others whole. An answer is right if the job's true rule, where the whole job
shows it, is still there with a cost within 10 % of the step; if nothing new stands above info and no rank is newly
named as slow; if a job that was faulty is not called healthy; and if the damage is said. Where the damaged rank is
itself the straggler, it may be missed as a rank without a trace (missing-straggler).
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.findings import Diagnosis, Finding, Severity

Event = dict[str, Any]
Trace = dict[str, Any]
#: A damaged file from the bytes of the whole one and of the next rank's.
Damage = Callable[[bytes, bytes], bytes]

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"}
HOST = {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "python_function"}
#: Of the step: by how much a cost may change.
TOLERANCE = 0.1
ABOUT_RANKS = {"straggler", "load-imbalance"}


def cut(share: float) -> Damage:
    return lambda data, _: data[: int(len(data) * share)]


def edited(change: Callable[[Trace], None]) -> Damage:
    def damage(data: bytes, _: bytes) -> bytes:
        trace = msgspec.json.decode(gzip.decompress(data))
        change(trace)
        return msgspec.json.encode(trace)

    return damage


def without(lost: Callable[[Event], bool]) -> Damage:
    return edited(lambda trace: trace.update(traceEvents=[e for e in trace["traceEvents"] if not lost(e)]))


def each(change: Callable[[Event], None], chosen: Callable[[Event], bool] = lambda _: True) -> Damage:
    def apply(trace: Trace) -> None:
        for event in filter(chosen, trace["traceEvents"]):
            change(event)

    return edited(apply)


def one(chosen: Callable[[Event], bool], change: Callable[[Event], None], share: float) -> Damage:
    """The event at this share of those chosen."""

    def apply(trace: Trace) -> None:
        events = [event for event in trace["traceEvents"] if chosen(event)]
        if events:
            change(events[int(share * (len(events) - 1))])

    return edited(apply)


def is_kernel(event: Event) -> bool:
    return event.get("cat") == "kernel"


def is_nccl(event: Event) -> bool:
    return is_kernel(event) and "nccl" in event["name"]


def is_launch(event: Event) -> bool:
    return "LaunchKernel" in event["name"] and event.get("cat") in HOST


def is_step(event: Event) -> bool:
    return event["name"].startswith("ProfilerStep") and event.get("cat") == "user_annotation"


def digit(place: int) -> Callable[[Event], None]:
    def change(event: Event) -> None:
        text = f"{event['ts']:.3f}"
        event["ts"] = float(text[:place] + str((int(text[place]) + 5) % 10) + text[place + 1 :])

    return change


def scaled(event: Event) -> None:
    if "ts" in event:
        event["ts"] *= 1000


def half_lost(trace: Trace) -> None:
    lost = np.random.default_rng(0).random(len(trace["traceEvents"])) < 0.5
    trace["traceEvents"] = [
        e for e, gone in zip(trace["traceEvents"], lost, strict=True) if not (gone and is_kernel(e))
    ]


def one_step_lost(trace: Trace) -> None:
    steps = sorted((e for e in trace["traceEvents"] if is_step(e)), key=lambda event: event["ts"])
    step = steps[len(steps) // 2]
    launched = {
        e["args"].get("correlation")
        for e in trace["traceEvents"]
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and step["ts"] <= e["ts"] < step["ts"] + step["dur"]
    }
    trace["traceEvents"] = [
        e for e in trace["traceEvents"] if e.get("cat") not in DEVICE or e["args"].get("correlation") not in launched
    ]


def clock_jumps(trace: Trace) -> None:
    times = [e["ts"] for e in trace["traceEvents"] if is_kernel(e)]
    middle = (min(times) + max(times)) / 2
    for event in trace["traceEvents"]:
        if event.get("ts", 0) > middle:
            event["ts"] += 3e6


def claims(**values: Any) -> Damage:
    return edited(lambda trace: trace["distributedInfo"].update(values))


def renamed_copy(data: bytes, other: bytes) -> bytes:
    rank = msgspec.json.decode(gzip.decompress(data))["distributedInfo"]["rank"]
    return claims(rank=rank)(other, data)


DAMAGES: dict[str, Damage] = {
    "cut at 20 %": cut(0.2),
    "cut at 50 %": cut(0.5),
    "cut at 80 %": cut(0.8),
    "cut at 95 %": cut(0.95),
    "no device events": without(lambda e: e.get("cat") in DEVICE),
    "no host events": without(lambda e: e.get("cat") in HOST),
    "no NCCL kernels": without(is_nccl),
    "half the kernels": edited(half_lost),
    "no kernels in one step": edited(one_step_lost),
    "no correlations": each(lambda e: e["args"].pop("correlation", None), lambda e: "args" in e),
    "a duration of 3 h": one(is_kernel, lambda e: e.update(dur=1e10), 1.0),
    "a duration of 3 h in the middle": one(is_kernel, lambda e: e.update(dur=1e10), 0.5),
    "a duration of 3 h of NCCL": one(is_nccl, lambda e: e.update(dur=1e10), 0.5),
    "a digit of a kernel": one(is_kernel, digit(3), 0.4),
    "a digit of an AllReduce": one(is_nccl, digit(6), 0.6),
    "a digit of a launch": one(is_launch, digit(5), 0.5),
    "a digit of a step": one(is_step, digit(4), 0.5),
    "durations of zero": each(lambda e: e.update(dur=0), is_kernel),
    "times in ns": each(scaled),
    "a clock that jumps": edited(clock_jumps),
    "the next rank's file": lambda _, other: other,
    "the next rank's events": renamed_copy,
    "no events": edited(lambda trace: trace.update(traceEvents=[])),
    "garbage behind the end": lambda data, _: gzip.decompress(data) + b'{"ph": "X", "cat": "kernel"} garbage',
    "categories renamed": each(lambda e: e.update(cat=f"my_{e['cat']}"), lambda e: "cat" in e),
    "a world size of -4": claims(world_size=-4),
    "rank 1,048,575": claims(rank=(1 << 20) - 1, world_size=1 << 20),
}
#: Damage that takes nothing from what is compared need not be said where nothing was lost.
UNSEEN = {"cut at 95 %"}


def loud(diagnosis: Diagnosis) -> list[Finding]:
    return [finding for finding in diagnosis.findings if finding.severity != Severity.INFO.label]


def named(diagnosis: Diagnosis, *, moving: bool = True) -> set[int]:
    about = [finding for finding in loud(diagnosis) if finding.rule in ABOUT_RANKS]
    return {rank for finding in about if moving or finding.cause != "moving" for rank in finding.ranks}


def moves(diagnosis: Diagnosis) -> bool:
    return any(finding.cause == "moving" for finding in loud(diagnosis))


def tracing(diagnosis: Diagnosis, rank: int) -> float:
    """What recording the rank's trace costs the job, ms."""
    found = [finding for finding in diagnosis.findings if finding.rule == "profiler-overhead"]
    return sum(finding.cost_ms for finding in found if rank in finding.ranks)


def cost(diagnosis: Diagnosis, rules: set[str]) -> float:
    return sum(finding.cost_ms for finding in loud(diagnosis) if finding.rule in rules)


def wrong(whole: Diagnosis, found: Diagnosis, rank: int, file: str, entry: dict[str, Any]) -> list[str]:
    """What is wrong with the answer, beside that to the whole job."""
    rule = entry["truth"].get("rule")
    truth = {rule} & {finding.rule for finding in loud(whole)}
    allowed = {finding.rule for finding in loud(whole)} | {rule, "missing-straggler", *entry["accept"]}
    accused = [set(finding.ranks) for finding in loud(whole) if finding.rule == rule]
    is_guilty = rank in named(whole) or any(rank in ranks < set(whole.ranks) for ranks in accused)
    if is_guilty and truth:
        truth |= {"missing-straggler"}
    # Why a rank without a trace is late, its recording or itself, nothing tells.
    is_missed = "missing-straggler" in {finding.rule for finding in loud(found)}
    most = cost(whole, truth) + (tracing(whole, rank) if is_missed else 0.0)
    tolerance = TOLERANCE * found.step_ms
    bad = []
    if truth and found.verdict in ("healthy", "unknown"):
        bad.append(f"{found.verdict}")
    elif truth and not truth & {finding.rule for finding in loud(found)} and found.verdict not in entry["accept"]:
        bad.append(f"{rule} is gone")
    elif truth and not cost(whole, truth) - tolerance <= cost(found, truth) <= most + tolerance:
        bad.append(f"costs {cost(found, truth):.0f}, whole {cost(whole, truth):.0f}")
    if new := {finding.rule for finding in loud(found)} - allowed:
        bad.append(f"new {', '.join(sorted(new))}")
    # Where ranks are slow in turn, another is the slowest of a step once one is left out.
    if new_ranks := named(found, moving=not moves(whole)) - named(whole) - ({rank} if is_guilty else set()):
        bad.append(f"accuses {sorted(new_ranks)}")
    said = [warning for warning in found.warnings if file in warning.file]
    if not (said or rank in found.missing_ranks or any(file in other for other in found.incomplete)):
        bad.append("not said")
    return bad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--jobs", nargs="*")
    parser.add_argument("--kinds", nargs="*")
    parser.add_argument("--ranks", choices=["all", "some", "first"], default="all")
    options = parser.parse_args()
    truth = json.loads((options.corpus / "truth.json").read_text())
    results: Counter[tuple[str, bool]] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        reading = engine.Reading(cache=Cache(Path(temporary, "cache")))
        for job in options.jobs or sorted(truth):
            folder = Path(temporary, "jobs", job)
            shutil.copytree(options.corpus / job, folder)
            try_job(folder, truth[job], options.kinds or list(DAMAGES), options.ranks, reading, results)
            shutil.rmtree(folder)
    for kind in DAMAGES:
        if count := results[kind, True] + results[kind, False]:
            print(f"{kind:34} {results[kind, True]:5} of {count}")
    right, count = sum(n for (_, is_right), n in results.items() if is_right), results.total()
    print(f"{'all':34} {right:5} of {count} ({right / count:.1%})")


def try_job(
    folder: Path, entry: dict[str, Any], kinds: list[str], which: str, reading: engine.Reading, results: Counter[Any]
) -> None:
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    folder.chmod(0o755)
    (run,) = discover(folder)
    whole = engine.diagnose(run, reading=reading).diagnosis
    files = [file for file in run.files if which == "all" or file is run.files[0] or is_named(file.rank, which, whole)]
    for i, file in enumerate(files):
        path = Path(str(file.path))
        kept = path.read_bytes()
        following = Path(str(run.files[(run.files.index(file) + 1) % len(run.files)].path)).read_bytes()
        for kind in kinds:
            path.write_bytes(DAMAGES[kind](kept, following))
            try:
                runs = [engine.diagnose(each_run, reading=reading).diagnosis for each_run in usable(folder)]
                found = max(runs, key=lambda diagnosis: len(diagnosis.ranks))
                bad = wrong(whole, found, file.rank, path.name, entry)
                headline = found.headline
            except Exception as error:
                bad, headline = [repr(error)], ""
            bad = [] if bad == ["not said"] and kind in UNSEEN else bad
            results[kind, not bad] += 1
            if bad:
                print(f"{folder.name} {kind}, rank {file.rank}: {'; '.join(bad)} | {headline[:80]}", flush=True)
        path.write_bytes(kept)
        print(f"{folder.name}: {i + 1} of {len(files)} ranks", file=sys.stderr)


def is_named(rank: int, which: str, whole: Diagnosis) -> bool:
    return which == "some" and rank in named(whole)


def usable(folder: Path) -> list[Any]:
    """The runs in which some file is not the damaged one."""
    runs = discover(folder)
    most = max(len(run.files) for run in runs)
    return [run for run in runs if len(run.files) == most]


if __name__ == "__main__":
    main()
