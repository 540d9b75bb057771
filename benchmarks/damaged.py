"""How right the doctor is where the file of one rank is damaged.

    python benchmarks/damaged.py CORPUS [--variants 2000] [--from 0] [--seed 0] [--jobs NAME ...] [--kinds NAME ...]

CORPUS is as for accuracy.py. A variant is one rank's file of one job, damaged in one of the ways below with all other
files whole; what is damaged, and by how much, is drawn from the seed. Variant N of a seed is always the same, so that
`--from N --variants 1` repeats it. Each answer gets a grade:

    right               the job's true rule, where the whole job shows it, is there with a cost within 10 % of the step;
                        nothing new stands above info, and no rank is newly named as slow
    wrong with a word   anything else, but a warning names the file
    wrong in silence    anything else
    healthy over fault  the whole job has a fault that costs a tenth of the step, and this one is called healthy; where
                        none was injected, "healthy" is the truth, whatever the whole job's traces show

Where the damaged rank is itself the straggler, it may be missed as a rank without a trace (missing-straggler). A
damaged file costs itself and no more, so what is right for the job without that file is right too, unless that calls
a faulty job healthy. A damaged file may cost the answer that its job is healthy: "unknown" is right there, and wrong
where a fault is.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import Run, discover
from tb_ddp_doctor.findings import Diagnosis, Finding, Severity

Event = dict[str, Any]
Trace = dict[str, Any]
Random = np.random.Generator


class Sources(NamedTuple):
    """The bytes that a damaged file is made of."""

    own: bytes
    #: Of the next rank, and of a rank of another job.
    following: bytes
    stranger: bytes


Damage = Callable[[Sources, Random], bytes]

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"}
HOST = {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "python_function"}
RUNTIME = {"cuda_runtime", "cuda_driver"}
#: Of the step: by how much a cost may change, and from which cost on a fault is one that "healthy" must not hide.
TOLERANCE = 0.1
ABOUT_RANKS = {"straggler", "load-imbalance"}
RIGHT, SAID, SILENT, HEALTHY = GRADES = ("right", "wrong with a word", "wrong in silence", "healthy over fault")
LEAST_RIGHT = 0.98


# ------------------------------------------------------------------------------------------------ kinds of damage


def decoded(data: bytes) -> Trace:
    return msgspec.json.decode(gzip.decompress(data))


def edited(change: Callable[[Trace, Random], None]) -> Damage:
    def damage(files: Sources, random: Random) -> bytes:
        trace = decoded(files.own)
        change(trace, random)
        return msgspec.json.encode(trace)

    return damage


def without(lost: Callable[[Event], bool]) -> Damage:
    return some_lost(lost, 1.0, 1.0)


def some_lost(chosen: Callable[[Event], bool], least: float, most: float) -> Damage:
    """A share between these of the chosen events is lost, each by chance."""

    def change(trace: Trace, random: Random) -> None:
        share = random.uniform(least, most) if most > least else least
        gone = random.random(len(trace["traceEvents"])) < share
        trace["traceEvents"] = [
            e for e, lost in zip(trace["traceEvents"], gone, strict=True) if not (lost and chosen(e))
        ]

    return edited(change)


def each(change: Callable[[Event], None], chosen: Callable[[Event], bool] = lambda _: True) -> Damage:
    def apply(trace: Trace, _: Random) -> None:
        for event in filter(chosen, trace["traceEvents"]):
            change(event)

    return edited(apply)


def one(chosen: Callable[[Event], bool], change: Callable[[Event, Random], None]) -> Damage:
    """One of the chosen events."""

    def apply(trace: Trace, random: Random) -> None:
        events = [event for event in trace["traceEvents"] if chosen(event)]
        if events:
            change(events[random.integers(len(events))], random)

    return edited(apply)


def is_kernel(event: Event) -> bool:
    return event.get("cat") == "kernel"


def is_nccl(event: Event) -> bool:
    return is_kernel(event) and "nccl" in event["name"]


def is_device(event: Event) -> bool:
    return event.get("cat") in DEVICE


def is_host(event: Event) -> bool:
    return event.get("cat") in HOST


def is_op(event: Event) -> bool:
    return event.get("cat") == "cpu_op"


def is_runtime(event: Event) -> bool:
    return event.get("cat") in RUNTIME


def is_launch(event: Event) -> bool:
    return "LaunchKernel" in event["name"] and event.get("cat") in HOST


def is_step(event: Event) -> bool:
    return event["name"].startswith("ProfilerStep") and event.get("cat") == "user_annotation"


def is_timed(event: Event) -> bool:
    return event.get("cat") in HOST | DEVICE


def digit(column: str) -> Callable[[Event, Random], None]:
    """Another digit in one place of a number, of those before its decimal point and the first behind it."""

    def change(event: Event, random: Random) -> None:
        text = f"{event[column]:.3f}"
        places = [i for i, letter in enumerate(text[:-2]) if letter.isdigit()]
        place = places[random.integers(len(places))]
        event[column] = float(
            text[:place] + str((int(text[place]) + int(random.integers(1, 10))) % 10) + text[place + 1 :]
        )

    return change


def lasts(us: float) -> Callable[[Event, Random], None]:
    return lambda event, _: event.update(dur=us)


def multiplied(factor: float, *columns: str) -> Callable[[Event], None]:
    def change(event: Event) -> None:
        for column in columns:
            if column in event:
                event[column] *= factor

    return change


def either(random: Random) -> float:
    """Forwards or backwards."""
    return 1.0 if random.random() < 0.5 else -1.0


def cut(files: Sources, random: Random) -> bytes:
    return files.own[: int(len(files.own) * random.uniform(0.05, 0.99))]


def cut_text(files: Sources, random: Random) -> bytes:
    text = gzip.decompress(files.own)
    return text[: int(len(text) * random.uniform(0.05, 0.99))]


def one_step_lost(trace: Trace, random: Random) -> None:
    """All kernels that one step launched."""
    step = steps_of(trace)[random.integers(len(steps_of(trace)))]
    launched = {
        e["args"].get("correlation")
        for e in trace["traceEvents"]
        if is_runtime(e) and step["ts"] <= e["ts"] < step["ts"] + step["dur"]
    }
    keep(trace, lambda e: not is_device(e) or e["args"].get("correlation") not in launched)


def keep(trace: Trace, kept: Callable[[Event], bool]) -> None:
    trace["traceEvents"] = [event for event in trace["traceEvents"] if kept(event)]


def steps_of(trace: Trace) -> list[Event]:
    return sorted((e for e in trace["traceEvents"] if is_step(e)), key=lambda event: event["ts"])


def marks_lost(trace: Trace, random: Random) -> None:
    """The annotations of some steps, but not of all."""
    names = [step["name"] for step in steps_of(trace)]
    lost = set(random.choice(names, random.integers(1, len(names)), replace=False).tolist()) if len(names) > 1 else ()
    keep(trace, lambda e: e["name"] not in lost)


def only_one_mark(trace: Trace, random: Random) -> None:
    names = [step["name"] for step in steps_of(trace)]
    kept = names[random.integers(len(names))]
    keep(trace, lambda e: not e["name"].startswith("ProfilerStep") or e["name"] == kept)


def end_lost(trace: Trace, random: Random) -> None:
    """All that happens from some step on, or before it."""
    steps = steps_of(trace)
    at = steps[random.integers(1, max(len(steps), 2)) % len(steps)]["ts"]
    is_end = random.random() < 0.5
    keep(trace, lambda e: "ts" not in e or (e["ts"] < at) == is_end)


def window_lost(chosen: Callable[[Event], bool]) -> Damage:
    """A stretch of a twentieth to a half of the record."""

    def change(trace: Trace, random: Random) -> None:
        times = [e["ts"] for e in trace["traceEvents"] if is_timed(e)]
        first, span = min(times), max(times) - min(times)
        length = span * random.uniform(0.05, 0.5)
        begin = first + random.uniform(0, span - length)
        keep(trace, lambda e: not (chosen(e) and begin <= e["ts"] < begin + length))

    return edited(change)


def clock_jumps(trace: Trace, random: Random) -> None:
    times = [e["ts"] for e in trace["traceEvents"] if is_kernel(e)]
    at, by = random.uniform(min(times), max(times)), either(random) * 10 ** random.uniform(4, 6.7)
    for event in trace["traceEvents"]:
        if event.get("ts", 0) > at:
            event["ts"] += by


def clock_apart(trace: Trace, random: Random) -> None:
    by = either(random) * 10 ** random.uniform(3, 9)
    for event in filter(is_timed, trace["traceEvents"]):
        event["ts"] = max(event["ts"] + by, 0.0)


def device_clock(trace: Trace, random: Random) -> None:
    """The device's clock beside the host's, by 1 ms to 1 s."""
    by = either(random) * 10 ** random.uniform(3, 6)
    for event in filter(is_device, trace["traceEvents"]):
        event["ts"] = max(event["ts"] + by, 0.0)


def drifting(trace: Trace, random: Random) -> None:
    """A clock that is fast or slow by 1 to 50 %."""
    by = 1 + either(random) * random.uniform(0.01, 0.5)
    first = min(e["ts"] for e in trace["traceEvents"] if is_timed(e))
    for event in filter(is_timed, trace["traceEvents"]):
        event["ts"] = first + (event["ts"] - first) * by
        event["dur"] = event.get("dur", 0) * by


def jittered(trace: Trace, random: Random) -> None:
    """Device events moved by up to 2 ms each, by chance."""
    for event in filter(is_device, trace["traceEvents"]):
        event["ts"] += random.uniform(-2000, 2000)


def renumbered(trace: Trace, random: Random) -> None:
    by = int(random.choice([-1, 1, 2, 7, 100]))
    for event in trace["traceEvents"]:
        if event["name"].startswith("ProfilerStep#"):
            event["name"] = f"ProfilerStep#{max(int(event['name'].split('#')[1]) + by, 0)}"


def doubled(chosen: Callable[[Event], bool], least: float = 1.0) -> Damage:
    """A share of the chosen events is there twice."""

    def change(trace: Trace, random: Random) -> None:
        share = random.uniform(least, 1.0)
        trace["traceEvents"] += [dict(e) for e in trace["traceEvents"] if chosen(e) and random.random() < share]

    return edited(change)


def shuffled(trace: Trace, random: Random) -> None:
    random.shuffle(trace["traceEvents"])


def correlations(values: Callable[[Random, int], int]) -> Damage:
    def change(trace: Trace, random: Random) -> None:
        for event in trace["traceEvents"]:
            if "correlation" in event.get("args", {}) and is_device(event):
                event["args"]["correlation"] = values(random, event["args"]["correlation"])

    return edited(change)


def claims(**values: Any) -> Damage:
    return edited(lambda trace, _: trace["distributedInfo"].update(values))


def disguised(data: bytes, as_of: bytes) -> bytes:
    """One file's events under another's rank."""
    trace, own = decoded(data), decoded(as_of)
    trace["distributedInfo"] = own["distributedInfo"]
    return msgspec.json.encode(trace)


def renamed(chosen: Callable[[Event], bool], name: Callable[[str], str], share: float = 1.0) -> Damage:
    def change(trace: Trace, random: Random) -> None:
        for event in filter(chosen, trace["traceEvents"]):
            if random.random() < share:
                event["name"] = name(event["name"])

    return edited(change)


def without_metadata(trace: Trace, _: Random) -> None:
    for event in trace["traceEvents"]:
        for key in ("Collective name", "Process Group Name", "Process Group Ranks", "Group size", "In msg nelems"):
            event.get("args", {}).pop(key, None)


def bad_bytes(files: Sources, random: Random) -> bytes:
    """A few bytes overwritten anywhere."""
    text = bytearray(gzip.decompress(files.own))
    for _ in range(random.integers(1, 20)):
        text[random.integers(len(text))] = random.integers(256)
    return bytes(text)


DAMAGES: dict[str, Damage] = {
    "file cut": cut,
    "text cut": cut_text,
    "bytes overwritten": bad_bytes,
    "garbage behind the end": lambda files, _: gzip.decompress(files.own) + b'{"ph": "X", "cat": "kernel"} garbage',
    "no device events": without(is_device),
    "no host events": without(is_host),
    "no runtime calls": without(is_runtime),
    "no ops": without(is_op),
    "no NCCL kernels": without(is_nccl),
    "some kernels": some_lost(is_kernel, 0.02, 0.9),
    "some NCCL kernels": some_lost(is_nccl, 0.02, 0.9),
    "some host events": some_lost(is_host, 0.02, 0.9),
    "some ops": some_lost(is_op, 0.1, 0.9),
    "some runtime calls": some_lost(is_runtime, 0.02, 0.9),
    "some of all": some_lost(is_timed, 0.02, 0.9),
    "no events": edited(lambda trace, _: trace.update(traceEvents=[])),
    "no kernels in one step": edited(one_step_lost),
    "some marks of steps lost": edited(marks_lost),
    "one step's mark left": edited(only_one_mark),
    "beginning or end lost": edited(end_lost),
    "a window lost": window_lost(is_timed),
    "a window of the host lost": window_lost(is_host),
    "a window of the device lost": window_lost(is_device),
    "one kernel of 3 h": one(is_kernel, lasts(1e10)),
    "one NCCL kernel of 3 h": one(is_nccl, lasts(1e10)),
    "one op of 3 h": one(is_op, lasts(1e10)),
    "one runtime call of 3 h": one(is_runtime, lasts(1e10)),
    "one step of 3 h": one(is_step, lasts(1e10)),
    "one kernel of 1 s": one(is_kernel, lasts(1e6)),
    "one NCCL kernel of 1 s": one(is_nccl, lasts(1e6)),
    "one op of 1 s": one(is_op, lasts(1e6)),
    "one runtime call of 1 s": one(is_runtime, lasts(1e6)),
    "a digit of a kernel's start": one(is_kernel, digit("ts")),
    "a digit of a kernel's duration": one(is_kernel, digit("dur")),
    "a digit of an NCCL kernel's start": one(is_nccl, digit("ts")),
    "a digit of an NCCL kernel's duration": one(is_nccl, digit("dur")),
    "a digit of a launch's start": one(is_launch, digit("ts")),
    "a digit of a launch's duration": one(is_launch, digit("dur")),
    "a digit of an op's start": one(is_op, digit("ts")),
    "a digit of an op's duration": one(is_op, digit("dur")),
    "a digit of a step's start": one(is_step, digit("ts")),
    "durations of zero": each(lambda e: e.update(dur=0), is_kernel),
    "durations in ms": each(multiplied(0.001, "dur"), is_timed),
    "times in ns": each(multiplied(1000.0, "ts", "dur"), is_timed),
    "times in ms": each(multiplied(0.001, "ts", "dur"), is_timed),
    "a clock that jumps": edited(clock_jumps),
    "a clock apart": edited(clock_apart),
    "a device's clock apart": edited(device_clock),
    "a clock that drifts": edited(drifting),
    "device times that jitter": edited(jittered),
    "steps renumbered": edited(renumbered),
    "all events twice": doubled(is_timed),
    "some events twice": doubled(is_timed, 0.1),
    "device events twice": doubled(is_device),
    "host events twice": doubled(is_host),
    "events in any order": edited(shuffled),
    "the next rank's file": lambda files, _: files.following,
    "the next rank's events": lambda files, _: disguised(files.following, files.own),
    "a stranger's events": lambda files, _: disguised(files.stranger, files.own),
    "correlations of 0": correlations(lambda *_: 0),
    "no correlations": each(lambda e: e["args"].pop("correlation", None), lambda e: "args" in e),
    "correlations off by one": correlations(lambda _, number: number + 1),
    "correlations of chance": correlations(lambda random, number: int(random.integers(1, max(number, 2)))),
    "categories renamed": each(lambda e: e.update(cat=f"my_{e['cat']}"), lambda e: "cat" in e),
    "NCCL kernels renamed": renamed(is_nccl, lambda _: "renamed_kernel"),
    "some NCCL kernels renamed": renamed(is_nccl, lambda _: "renamed_kernel", 0.3),
    "kernels renamed": renamed(is_kernel, lambda name: name if "nccl" in name else f"my_{name[-8:]}"),
    "ops renamed": renamed(is_op, lambda name: f"my_{name[-8:]}"),
    "no metadata of collectives": edited(without_metadata),
    "one stream": each(lambda e: (e.update(tid=7), e["args"].update(stream=7)), is_device),
    "one thread": each(lambda e: e.update(tid=1), is_host),
    "a world size of -4": claims(world_size=-4),
    "rank 1,048,575": claims(rank=(1 << 20) - 1, world_size=1 << 20),
}


# --------------------------------------------------------------------------------------------------- answers


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


def wrong(whole: Diagnosis, found: Diagnosis, rank: int, entry: dict[str, Any]) -> list[str]:
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
    tolerance = TOLERANCE * max(found.step_ms, whole.step_ms)
    bad = []
    if truth and found.verdict in ("healthy", "unknown"):
        bad.append(f"{found.verdict}")
    elif truth and not truth & {finding.rule for finding in loud(found)} and found.verdict not in entry["accept"]:
        bad.append(f"{rule} is gone")
    elif truth and not cost(whole, truth) - tolerance <= cost(found, truth) <= most + tolerance:
        bad.append(f"costs {cost(found, truth):.0f}, whole {cost(whole, truth):.0f}")
    elif not truth and found.verdict == "unexplained" != whole.verdict:
        bad.append("unexplained")
    if new := {finding.rule for finding in loud(found)} - allowed:
        bad.append(f"new {', '.join(sorted(new))}")
    # Where ranks are slow in turn, another is the slowest of a step once one is left out.
    if new_ranks := named(found, moving=not moves(whole)) - named(whole) - ({rank} if is_guilty else set()):
        bad.append(f"accuses {sorted(new_ranks)}")
    return bad


def grade(
    whole: Diagnosis,
    without_file: Callable[[], Diagnosis],
    found: Diagnosis,
    rank: int,
    file: str,
    entry: dict[str, Any],
) -> tuple[str, list[str]]:
    """The grade of an answer, and what is wrong with it."""
    fault = cost(whole, {finding.rule for finding in loud(whole)}) if entry["truth"].get("rule") else 0.0
    if fault >= TOLERANCE * whole.step_ms and found.verdict == "healthy":
        return HEALTHY, ["healthy"]
    bad = wrong(whole, found, rank, entry)
    if bad and not wrong(without_file(), found, rank, entry):
        bad = []
    said = [warning for warning in found.warnings if file in warning.file]
    is_said = said or rank in found.missing_ranks or any(file in other for other in found.incomplete)
    return (RIGHT if not bad else SAID if is_said else SILENT), bad


# --------------------------------------------------------------------------------------------------- variants


class Variant(NamedTuple):
    """One damaged file; which of the job's files it is, and of the next job's that a stranger's is."""

    number: int
    job: str
    file: int
    kind: str


def variants(sizes: dict[str, int], kinds: list[str], seed: int) -> Iterator[Variant]:
    """Without end: every kind and every file comes as often, in an order of chance."""
    random = np.random.default_rng(seed)
    files = [(job, file) for job, size in sorted(sizes.items()) for file in range(size)]
    which, how, number = [], [], 0
    while True:
        which, how = which or random.permutation(len(files)).tolist(), how or random.permutation(len(kinds)).tolist()
        yield Variant(number, *files[which.pop()], kinds[how.pop()])
        number += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--variants", type=int, default=2000)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", nargs="*", help="only variants of these")
    parser.add_argument("--kinds", nargs="*", help="only variants of these")
    options = parser.parse_args()
    truth = json.loads((options.corpus / "truth.json").read_text())
    sizes = {job: len(_run(options.corpus / job).files) for job in truth}
    chosen: defaultdict[str, list[Variant]] = defaultdict(list)
    for variant in variants(sizes, list(DAMAGES), options.seed):
        if variant.number >= options.first + options.variants:
            break
        wanted = variant.job in (options.jobs or truth) and variant.kind in (options.kinds or DAMAGES)
        if variant.number >= options.first and wanted:
            chosen[variant.job].append(variant)
    results: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        reading = engine.Reading(cache=Cache(Path(temporary, "cache")))
        for i, job in enumerate(sorted(chosen)):
            folder = Path(temporary, "jobs", job)
            shutil.copytree(options.corpus / job, folder)
            jobs = sorted(truth)
            stranger = options.corpus / jobs[(jobs.index(job) + 1) % len(jobs)]
            results += _try_job(folder, stranger, truth[job], chosen[job], reading, options.seed)
            shutil.rmtree(folder)
            print(f"{i + 1} of {len(chosen)} jobs", file=sys.stderr)
    return _report(results)


def _report(results: Counter[tuple[str, str]]) -> int:
    print(f"{'':38}" + "".join(f"{name:>20}" for name in GRADES))
    for kind in [*DAMAGES, "all"]:
        counts = [sum(n for (k, g), n in results.items() if g == grade and kind in (k, "all")) for grade in GRADES]
        if sum(counts):
            print(f"{kind:38}" + "".join(f"{count:20}" for count in counts))
    right = sum(n for (_, g), n in results.items() if g == RIGHT) / max(results.total(), 1)
    print(f"right: {right:.1%}")
    bad = [n for (_, g), n in results.items() if g in (SILENT, HEALTHY)]
    return 0 if right >= LEAST_RIGHT and not sum(bad) else 1


def _run(folder: Path) -> Run:
    (run,) = discover(folder)
    return run


def _try_job(
    folder: Path, stranger: Path, entry: dict[str, Any], tried: list[Variant], reading: engine.Reading, seed: int
) -> Counter[tuple[str, str]]:
    results: Counter[tuple[str, str]] = Counter()
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    run = _run(folder)
    whole = engine.diagnose(run, reading=reading).diagnosis

    @cache
    def without_file(file: int) -> Diagnosis:
        left = replace(run, files=tuple(other for i, other in enumerate(run.files) if i != file))
        return engine.diagnose(left, reading=reading).diagnosis

    theirs = [Path(str(file.path)) for file in _run(stranger).files]
    paths = [Path(str(file.path)) for file in run.files]
    for variant in tried:
        path = paths[variant.file]
        kept = path.read_bytes()
        following = paths[(variant.file + 1) % len(paths)].read_bytes()
        files = Sources(kept, following, theirs[variant.file % len(theirs)].read_bytes())
        path.write_bytes(DAMAGES[variant.kind](files, np.random.default_rng([seed, variant.number])))
        rank, headline = run.files[variant.file].rank, ""
        try:
            found = [engine.diagnose(each_run, reading=reading).diagnosis for each_run in _usable(folder)]
            best = max(found, key=lambda diagnosis: len(diagnosis.ranks))
            given, bad = grade(whole, partial(without_file, variant.file), best, rank, path.name, entry)
            headline = best.headline
        except Exception as error:
            given, bad = SILENT, [repr(error)]
        path.write_bytes(kept)
        results[variant.kind, given] += 1
        if bad:
            told = f"{variant.number}: {variant.job}, {variant.kind}, rank {rank}: {given}: {'; '.join(bad)}"
            print(f"{told} | {headline[:100]}", flush=True)
    return results


def _usable(folder: Path) -> list[Run]:
    """The runs in which some file is not the damaged one."""
    runs = discover(folder)
    most = max(len(run.files) for run in runs)
    return [run for run in runs if len(run.files) == most]


if __name__ == "__main__":
    sys.exit(main())
