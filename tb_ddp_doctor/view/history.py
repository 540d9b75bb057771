"""The view Hours: a job's hours in up to 512 bins of steps, its events, and its captures."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_ddp_doctor.discover.names import CAPTURE_FOLDER
from tb_ddp_doctor.engine import Result
from tb_ddp_doctor.history.account import lost_us
from tb_ddp_doctor.history.collective_sentences import group_name, sentences
from tb_ddp_doctor.history.collectives import CollectiveHours, read_collectives
from tb_ddp_doctor.history.events import Event
from tb_ddp_doctor.history.job import JobHistory
from tb_ddp_doctor.history.logs.inspector import inspector_files
from tb_ddp_doctor.history.pyramid import compared_bins
from tb_ddp_doctor.history.sentences import Price, cost, headline, read_from, trend, what
from tb_ddp_doctor.history.summary import Summary, summarise
from tb_ddp_doctor.history.windows import Keep
from tb_ddp_doctor.slices.event_text import label
from tb_ddp_doctor.storage.paths import identity
from tb_ddp_doctor.view.step_times import inspector_folder, own_folder, places, read_step_times, root_of

#: Rows of the heat map: of more ranks, a row is the slowest of as many successive ones.
_MOST_ROWS = 512
#: Events and ranks of an event that are sent.
_EVENTS, _EVENT_RANKS = 100, 64
#: A level of the heat map is half a percent above the median rank; the last but one is 127 % and more, 255 unknown.
_LEVEL, _UNKNOWN = 0.005, 255


class KeepAnswers(Keep, Protocol):
    """Where parts and answers are kept between runs."""

    def answer(self, key: str) -> bytes | None: ...

    def keep_answer(self, answer: bytes, key: str) -> None: ...


class Capture(NamedTuple):
    """The folder of a capture, and its first step."""

    step: int
    path: Path


def captures_of(logdir: Path) -> list[Capture]:
    """A job's captures, by step; of those of several starts at one step, the last start's."""
    starts = [logdir, *sorted(folder for folder in logdir.iterdir() if folder.is_dir() and not folder.is_symlink())]
    folder_of: dict[int, Path] = {}
    for start in starts:
        for folder in start.glob("step_*"):
            named = CAPTURE_FOLDER.fullmatch(folder.name)
            if named and folder.is_dir() and not folder.is_symlink():
                folder_of[int(named[1])] = folder
    return [Capture(step, path) for step, path in sorted(folder_of.items())]


def nearest(event: Event, captures: Mapping[int, Path]) -> tuple[Path | None, Path | None]:
    """The last capture before an event begins and the first one within it; `captures` are folders by step."""
    before = max((step for step in captures if step < event.first_step), default=-1)
    after = min((step for step in captures if event.first_step <= step <= event.last_step), default=-1)
    return captures.get(before), captures.get(after)


#: What is said of a change that begins with the first capture.
ATTACHED = (
    "It begins with the first capture: on GPUs torch's profiler stays attached to the driver, which may slow every "
    "launch; TEARDOWN_CUPTI=1 in the job's environment detaches it, with CUDA 12.6 or later and without CUDA graphs."
)
#: A change is placed as exactly as this, in steps, and as this share of what follows it.
_EXACT_STEPS, _EXACT_SHARE = 5, 0.001


def begins_with_first(event: Event, captures: Mapping[int, Path]) -> bool:
    """Whether all ranks are slower from the first capture on: the profiler may have stayed attached."""
    if event.kind != "change" or event.level != "job" or event.added_ms <= 0 or not captures:
        return False
    exact = max(_EXACT_STEPS, _EXACT_SHARE * (event.last_step - event.first_step))
    return abs(event.first_step - min(captures)) <= exact


def kept_history(result: Result, keep: KeepAnswers) -> bytes:
    """`history` as JSON, made once for a state of the job's files."""
    folders = places(result)
    inspected = {place.folder for place in folders} or set(filter(None, [inspector_folder(result)]))
    if not inspected:
        return msgspec.json.encode(history(result))
    price = _price(result)
    key = hashlib.sha256(f"{result.diagnosis.name}\0{result.files[0]}\0{price}\0".encode(errors="surrogateescape"))
    for place in folders:
        for capture in captures_of(place.folder):
            key.update(f"{capture}\0".encode(errors="surrogateescape"))
    step_files = (path for place in folders for path in place.all_files())
    for path in (*step_files, *(path for folder in sorted(inspected) for path in inspector_files(folder))):
        with contextlib.suppress(OSError):
            key.update(f"{identity(path)}\0".encode(errors="surrogateescape"))
    answer = keep.answer(key.hexdigest())
    if answer is None:
        answer = msgspec.json.encode(history(result, keep))
        keep.keep_answer(answer, key.hexdigest())
    return answer


def history(result: Result, keep: Keep | None = None) -> dict[str, Any]:
    """The numbers of the view; `folder` is None where the job kept no step times."""
    step_times, problems = read_step_times(places(result), keep)
    inspected = step_times.folder if step_times else inspector_folder(result)
    collectives, more = read_collectives(inspected) if inspected else (None, [])
    shared = {
        "folder": label(str(step_times.folder)) if step_times else None,
        "problems": [label(problem) for problem in (*problems, *more)],
        "collectives": [label(line) for line in sentences(collectives)] if collectives else [],
        "collectives_over_time": _over_time(collectives),
    }
    if step_times is None:
        return shared
    job = step_times.job
    summary = summarise(job)
    captures = captures_of(step_times.folder)
    run_of = _Runs(result, step_times.folder)
    by_step = {capture.step: capture.path for capture in captures}
    return {
        **shared,
        "source": label(read_from(job.logged_by)) if job.logged_by else "",
        "headline": label(headline(summary)),
        "ranks": summary.ranks,
        "nodes": summary.nodes,
        "steps": summary.steps,
        "names_ranks": summary.names_ranks,
        "median_step_ms": summary.median_step_ms,
        "p99_step_ms": summary.p99_step_ms,
        "goodput": summary.account.goodput,
        "goodput_trend": trend(summary),
        "slowdown": summary.account.slowdown,
        "slowest_workers": summary.account.slowest_workers,
        "last_stage": summary.account.last_stage,
        "time_s": {label(name): round(seconds, 3) for name, seconds in summary.account.time_s.items()},
        "events": [_event(event, summary, _price(result), run_of, by_step) for event in summary.events[:_EVENTS]],
        "captures": [
            {"step": capture.step, "at_s": _when(job, capture.step), "run": run_of(capture.path)}
            for capture in captures
        ],
        **_bins(job, summary),
        "heat": _heat(job),
    }


def _over_time(collectives: CollectiveHours | None) -> dict[str, Any] | None:
    """Bandwidth and waits of groups by bins of time; None where no Inspector wrote."""
    if collectives is None or not collectives.over_time:
        return None
    groups = [
        {
            "name": label(group_name(one)),
            "calls": one.calls,
            "transfer_s": round(one.transfer_s, 6),
            "busbw_gbs": one.busbw_gbs,
            "low_gbs": one.low_gbs,
            "wait_ms": one.wait_ms,
        }
        for one in collectives.over_time
    ]
    return {"edges_s": collectives.edges_s, "groups": groups}


class _Runs:
    """What runs are called in the tab, by their folders."""

    def __init__(self, result: Result, logdir: Path) -> None:
        own = own_folder(result)
        self._here = own
        self._name = result.diagnosis.name
        self._root = (own and root_of(result, own)) or logdir

    def __call__(self, folder: Path | None) -> str | None:
        if folder is None:
            return None
        if folder == self._here:
            return self._name
        try:
            return folder.relative_to(self._root).as_posix()
        except ValueError:
            return None


def _price(result: Result) -> Price | None:
    """What a GPU costs, as the run's own diagnosis has it."""
    rates = result.diagnosis.rates
    if rates is None or rates.workload.gpu_hour is None:
        return None
    return Price(rates.workload.gpu_hour, rates.currency)


def _event(
    event: Event, summary: Summary, price: Price | None, run_of: _Runs, captures: Mapping[int, Path]
) -> dict[str, Any]:
    near = nearest(event, captures)
    attached = f". {ATTACHED}" if begins_with_first(event, captures) else ""
    return {
        "kind": event.kind,
        "level": event.level,
        "what": label(f"{what(event, summary)}{attached}"),
        "cost": label(cost(event, summary, price)),
        "cost_s": event.cost_s,
        "cost_share": event.cost_share,
        "ranks": list(event.ranks[:_EVENT_RANKS]),
        "first_step": event.first_step,
        "last_step": event.last_step,
        "begin_s": event.begin_s,
        "end_s": event.end_s,
        "before": run_of(near[0]),
        "after": run_of(near[1]),
    }


def _bins(job: JobHistory, summary: Summary) -> dict[str, Any]:
    """By bin of steps: when it begins, the job's step (minimum, median, p99, maximum), and the time lost by kind."""
    steps, of_column = job.pyramid.steps, job.steps_a_column
    _, width = compared_bins(job.pyramid)
    count = len(steps.length_us) // width
    first = np.arange(count) * width
    cut = steps.length_us[: count * width].reshape(count, width)
    with np.errstate(all="ignore"):
        ordered = np.sort(cut, axis=1)  # NaN last
    known = np.maximum(np.count_nonzero(~np.isnan(cut), axis=1), 1)
    each = np.arange(count)
    begins_s = _begins(job)[first] / 1e9
    edges_s = np.concatenate((begins_s, [summary.end_s]))
    lost = {
        name: np.add.reduceat(us.astype(np.float64), first) / 1e6 if count else np.zeros(0)
        for name, us in lost_us(job, summary.median_step_ms * of_column * 1000).items()
    }
    between = [(phase.name, phase.begin_ns, phase.end_ns) for phase in job.phases]
    between += [("restarts", restart.end_ns, restart.begin_ns) for restart in job.restarts]
    for name, begin_ns, end_ns in between:
        overlap = np.minimum(edges_s[1:], end_ns / 1e9) - np.maximum(edges_s[:-1], begin_ns / 1e9)
        lost[name] = lost.get(name, np.zeros(count)) + np.maximum(overlap, 0)
    return {
        "bin_steps": width * of_column,
        "first_step": job.pyramid.first_step,
        "edges_s": np.round(edges_s, 3).tolist(),
        "step_ms": {
            name: _ms(ordered[each, at] / of_column)
            for name, at in (
                ("low", np.zeros(count, dtype=np.int64)),
                ("median", (known - 1) // 2),
                ("p99", np.ceil(0.99 * known).astype(np.int64) - 1),
                ("high", known - 1),
            )
        },
        "lost_s": {label(name): np.round(seconds, 3).tolist() for name, seconds in lost.items() if seconds.any()},
    }


def _heat(job: JobHistory) -> dict[str, Any] | None:
    """Busy time of ranks by bin, above the median rank, as levels of half a percent, in base64; None without ranks."""
    pyramid = job.pyramid
    if not pyramid.is_busy or len(pyramid.ranks) < 2:
        return None
    medians, width = compared_bins(pyramid)
    longest = _largest_of_bins(pyramid.high_us, width // pyramid.width)
    rows = -(-len(medians) // _MOST_ROWS)
    first = np.arange(0, len(medians), rows)
    with np.errstate(all="ignore"):
        median = np.sort(medians, axis=0)[
            (np.count_nonzero(~np.isnan(medians), axis=0) - 1) // 2, np.arange(medians.shape[1])
        ]
        shares = {"median": medians / median - 1, "longest": longest / median - 1}
    return {
        "ranks": pyramid.ranks[first].tolist(),
        "of": rows,
        "nodes": [label(pyramid.nodes[row]) for row in first.tolist()],
        "level": _LEVEL,
        **{name: _levels(np.fmax.reduceat(share, first, axis=0)) for name, share in shares.items()},
    }


def _largest_of_bins(values: NDArray[Any], of: int) -> NDArray[Any]:
    count = values.shape[1] // of
    result: NDArray[Any] = np.fmax.reduce(values[:, : count * of].reshape(len(values), count, of), axis=2)
    return result


def _levels(shares: NDArray[Any]) -> str:
    levels = np.where(np.isnan(shares), _UNKNOWN, np.clip(np.nan_to_num(shares) / _LEVEL, 0, _UNKNOWN - 1))
    return base64.b64encode(levels.astype(np.uint8).tobytes()).decode()


def _begins(job: JobHistory) -> NDArray[Any]:
    """When each step begins, ns; of steps that were not timed, when the last one before did."""
    begins_ns = np.maximum.accumulate(job.pyramid.steps.begins_ns)
    known = begins_ns[begins_ns > 0]
    return np.where(begins_ns > 0, begins_ns, known[0] if len(known) else 0)


def _when(job: JobHistory, step: int) -> float | None:
    """When a step began, s since 1970; None of one outside of the history."""
    at = (step - job.pyramid.first_step) // job.steps_a_column
    return round(float(_begins(job)[at]) / 1e9, 3) if 0 <= at < len(job.pyramid.steps.begins_ns) else None


def _ms(values_us: NDArray[Any]) -> list[float | None]:
    return [None if value != value else round(value / 1000, 4) for value in values_us.tolist()]
