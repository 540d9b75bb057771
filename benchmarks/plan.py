"""How right plans are: the change of the step that is predicted from one job, against another job that has that change.

    python benchmarks/plan.py CORPUS [--simulate TOOLS] [--many-ranks]

CORPUS is a directory of runs with a `truth.json`, as for `accuracy.py`. The measured change is that of the untraced
steps; it and its error are in percent of the step of the job that is predicted from. Judged are pairs of jobs that
differ in nothing but what is asked, where traced and untraced steps agree within 25 %: the median error is to be at
most 4 %, the worst 12 %, and to predict "no change" is to be worse. All other pairs are printed. TOOLS is the directory
of `simulate.py`: jobs with faster and slower links are simulated from several jobs, each to be predicted within 5 %.
`--many-ranks` times 20 points of a made-up job of 4,096 ranks and 10 steps, which are to take 20 s at most.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tb_ddp_doctor import engine
from tb_ddp_doctor.api import planner
from tb_ddp_doctor.discover.runs import discover, only_run
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.job.build import build
from tb_ddp_doctor.planning.model import Question
from tb_ddp_doctor.planning.predict import Planner
from tb_ddp_doctor.planning.record import PlanRecord
from tb_ddp_doctor.planning.refusal import CannotPlanError

#: `bucket_cap_mb` of jobs that differ in nothing else.
BUCKET_MB = {"healthy": 5.0, "tiny_buckets": 0.05, "no_overlap": 100_000.0}
#: Pairs, and what is asked of the first to have the second.
OTHERS = (
    ("fp32_no_tensor_core", "small_batch", Question(fixed=("no-tensor-cores",))),
    ("unpinned_memcpy", "pinned_memcpy", Question(fixed=("pageable-memcpy",))),
    ("pinned_memcpy", "unpinned_memcpy", Question(pin_memory=False)),
)
#: Pairs that differ in more, or whose truth is not of what is asked alone.
UNJUDGED = (
    ("dataloader_stall", "healthy", Question(workers=2)),
    ("zero_workers", "four_workers", Question(workers=4)),
    ("four_workers", "zero_workers", Question(workers=0)),
    ("healthy", "fsdp_healthy", Question(sharding="zero3")),
    ("fsdp_healthy", "healthy", Question(sharding="ddp", bucket_mb=5.0)),
    ("fsdp_healthy", "no_overlap", Question(sharding="ddp", bucket_mb=100_000.0)),
)
LINKS = (0.5, 0.75, 1.5, 2.0, 4.0, 8.0)
SIMULATED = ("healthy", "healthy8", "tiny_buckets")
#: `simulate.py` takes what a host does in the recorded step as its work, also where the launch queue or the profiler
#: blocked it. With faster links it would be blocked no more, so from these jobs the errors are printed alone.
BLOCKED = ("no_overlap", "comm_bound", "small_batch")
MEDIAN, WORST, LINKS_WORST, TRACED, MANY_RANKS_S = 4.0, 12.0, 5.0, 0.25, 20.0


@dataclass(frozen=True)
class Row:
    """A pair of jobs; times in ms."""

    before: str
    after: str
    asked: str
    step_ms: float
    predicted_ms: float
    low_ms: float
    high_ms: float
    true_ms: float
    judged: bool

    @property
    def error(self) -> float:
        """Percent of the step."""
        return 100 * (self.predicted_ms - self.true_ms) / self.step_ms

    @property
    def no_change(self) -> float:
        """The same of a prediction of no change."""
        return -100 * self.true_ms / self.step_ms


def asked_pairs() -> list[tuple[str, str, Question]]:
    """All pairs, and what is asked."""
    buckets = [
        (before, after, Question(bucket_mb=size))
        for before in BUCKET_MB
        for after, size in BUCKET_MB.items()
        if before != after
    ]
    return [*buckets, *OTHERS]


def other_pairs(truth: dict[str, Any]) -> Iterator[tuple[str, str, Question]]:
    """Pairs that are not judged: each job with a fault, and the same without it; and some more."""
    asked = {(before, after) for before, after, _ in asked_pairs()}
    for name, entry in truth.items():
        rule, baseline = entry["truth"]["rule"], entry["baseline"]
        if rule and baseline and (name, baseline) not in asked:
            yield name, baseline, Question(fixed=(rule,))
    yield from UNJUDGED


def compare(corpus: Path, truth: dict[str, Any], console: Console) -> list[Row]:
    """All pairs."""
    judged = asked_pairs()
    pairs = [*judged, *other_pairs(truth)]
    names = {before for before, _, _ in pairs}
    plans = {run.name: planner(engine.diagnose(run)) for run in discover(corpus) if run.name in names}
    rows = []
    for before, after, question in pairs:
        if before not in plans or after not in truth:
            continue
        try:
            found = plans[before].predict(question)
        except CannotPlanError as error:
            console.print(f"{before} -> {after}: refused: {error}")
            continue
        one = truth[before]
        rows.append(
            Row(
                before,
                after,
                ", ".join(f"{name}={value}" for name, value in found_fields(question)),
                one["step_ms"],
                found.change_ms,
                found.low_ms - plans[before].now_ns / 1e6,
                found.high_ms - plans[before].now_ns / 1e6,
                truth[after]["step_ms"] - one["step_ms"],
                (before, after, question) in judged and all(agrees(truth[name]) for name in (before, after)),
            )
        )
    return rows


def found_fields(question: Question) -> list[tuple[str, object]]:
    """What a question sets."""
    unset = Question()
    fields = ((name, getattr(question, name)) for name in Question.__struct_fields__)
    return [(name, value) for name, value in fields if value != getattr(unset, name)]


def agrees(entry: dict[str, Any]) -> bool:
    """Whether a job's traced step is like its untraced one."""
    return abs(entry["traced_step_ms"] / entry["step_ms"] - 1) <= TRACED


def simulated(corpus: Path, tools: Path, console: Console) -> float:
    """The worst error of predicted links, percent of the true step."""
    sys.path.insert(0, str(tools))
    simulate = importlib.import_module("simulate")
    errors = []
    for name in (*SIMULATED, *BLOCKED):
        if (corpus / name).is_dir():
            found = simulated_from(simulate, str(corpus / name), console)
            errors += found if name in SIMULATED else []
    return max(map(abs, errors))


def simulated_from(simulate: Any, job: str, console: Console) -> list[float]:
    """The errors of predicted links of jobs simulated from one, percent of the true step."""
    base, steps = simulate.Base(job, hscale=0.7), range(20, 25)

    def step_ms(sim: Any) -> float:
        lengths = [(sim.end[rank][steps[-1]] - sim.end[rank][steps[0] - 1]) / len(steps) for rank in sim.R]
        return float(sum(lengths)) / len(lengths) / 1e3

    now, errors = simulate.Sim(base, 40), []
    with tempfile.TemporaryDirectory() as folder:
        now.write(f"{folder}/job", steps[0], steps[-1])
        plan = planner(engine.diagnose(only_run(f"{folder}/job")))
        for times in LINKS:
            true = step_ms(simulate.Sim(base, 40, cf=lambda _n, _j, times=times: 1 / times))
            found = plan.predict(Question(links=times)).step_ms
            errors.append(100 * (found - true) / true)
            name = Path(job).name
            console.print(f"{name}, links x{times:g}: {found:.1f} ms, true {true:.1f} ms, error {errors[-1]:+.1f} %")
    return errors


def many_ranks(console: Console) -> float:
    """How long 20 points of a job of 4,096 ranks and 10 steps take, s, from a diagnosed run."""
    import many_ranks as made

    digests, nodes = made.make(4096, 10)
    job = build("made up", digests, nodes, 4096)
    sizes = tuple(1.0 + 2 * i for i in range(20))
    began = time.perf_counter()
    planning = Planner(PlanRecord(Facts(job)))
    for size in sizes:
        planning.predict(Question(bucket_mb=size))
    took = time.perf_counter() - began
    console.print(f"4,096 ranks x 10 steps: 20 points in {took:.1f} s")
    return took


def main() -> int:
    """Print the table; returns 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description="Compare plans with jobs that have the change.")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--simulate", type=Path, metavar="TOOLS")
    parser.add_argument("--many-ranks", action="store_true")
    options = parser.parse_args()
    console = Console(width=170)
    rows = compare(options.corpus, json.loads((options.corpus / "truth.json").read_text()), console)
    table = Table(box=None)
    for heading in ("from", "to", "asked", "step ms", "predicted", "range", "true", "error %", "no change %", ""):
        table.add_column(heading, no_wrap=True, justify="left" if heading in ("from", "to", "asked", "") else "right")
    for row in rows:
        amounts = f"{row.low_ms:+.1f} to {row.high_ms:+.1f}"
        held = row.low_ms <= row.true_ms <= row.high_ms
        table.add_row(
            row.before, row.after, row.asked, f"{row.step_ms:.1f}", f"{row.predicted_ms:+.1f}", amounts,
            f"{row.true_ms:+.1f}", f"{row.error:+.1f}", f"{row.no_change:+.1f}",
            ("" if row.judged else "not judged ") + ("" if held else "outside its range"),
        )  # fmt: skip
    console.print(table)
    judged = [row for row in rows if row.judged]
    errors, none = ([abs(getattr(row, name)) for row in judged] for name in ("error", "no_change"))
    good = bool(errors) and statistics.median(errors) <= MEDIAN and max(errors) <= WORST
    good = good and statistics.median(errors) < statistics.median(none) and max(errors) < max(none)
    if errors:
        console.print(
            f"{len(judged)} judged: median error {statistics.median(errors):.1f} % (no change "
            f"{statistics.median(none):.1f} %), worst {max(errors):.1f} % (no change {max(none):.1f} %); "
            f"{sum(row.low_ms <= row.true_ms <= row.high_ms for row in judged)} within their range"
        )
    if options.simulate:
        worst = simulated(options.corpus, options.simulate, console)
        console.print(f"links: worst error {worst:.1f} %")
        good = good and worst <= LINKS_WORST
    if options.many_ranks:
        good = many_ranks(console) <= MANY_RANKS_S and good
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
