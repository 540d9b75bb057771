"""Whether one thing has one number: in the JSON, the terminal, Markdown, what-if and comparisons of a run.

    python benchmarks/ledger.py FOLDER...
    python benchmarks/ledger.py --simulated 100 [--seed 1] [--first 0] SHARED

Each run below each FOLDER is diagnosed, and has to hold:

1. The parts of the account, and of its floor, sum to it in ns; as the terminal and Markdown show them, they sum to the
   step that is shown.
2. The owners of each rank's budget sum to its step, whose mean over ranks is the step.
3. The headline's cost, step and share are those of its finding, and its finding's cost is its line of the account.
4. "12.3 ms of every 45.6 ms" is of the step, or the sentence names ranks whose step is another one.
5. With all findings of the verdict fixed, what-if leaves the step without their costs.
6. The step and the cost of each finding are spelled in the terminal and in Markdown as the JSON's numbers are rounded.
7. Compared with another run, a rule's findings cost what they cost alone.
8. Where evidence is said to be of an idle GPU, the GPU runs nothing there.

With --simulated the runs are that many jobs of simulated.py with faults of all kinds, drawn and deleted one by one.

Prints what each run breaks; exits with 1 if one breaks any. What the tab shows in several places is compared by
tests/test_tab_numbers.py.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))
from consistency import results
from simulated import Player, numbered

from tb_ddp_doctor import engine, wording
from tb_ddp_doctor.comparison import build
from tb_ddp_doctor.findings import OWNERS, Diagnosis, Severity
from tb_ddp_doctor.report import markdown, shown, terminal
from tb_ddp_doctor.slices import lanes
from tb_ddp_doctor.step_parts import IDLE

#: Means of ns that are summed in another order differ by less, ms.
_SAME_MS = 1e-3
#: What is rounded to 0.1 ms is off by half of that.
_SHOWN_MS = 0.05
#: Owners of time in which the GPU runs something, as indices; and the share of "idle" evidence that may be theirs.
_BUSY = [OWNERS.index(name) for name in OWNERS if name not in IDLE]
MOST_BUSY = 0.01
_OF_EVERY = re.compile(r"of every ([\d.,]+ (?:ms|s|µs))")


def contradictions(result: engine.Result) -> Iterator[str]:
    """What a diagnosis says with two numbers, a sentence each."""
    yield from contradictions_of(result.diagnosis)
    yield from _what_if(result)
    yield from _spelled(result)
    yield from _idle(result)


def contradictions_of(diagnosis: Diagnosis) -> Iterator[str]:
    """The same of the JSON alone."""
    yield from _sums(diagnosis)
    yield from _budgets(diagnosis)
    yield from _headline(diagnosis)
    yield from _of_every(diagnosis)


def _sums(diagnosis: Diagnosis) -> Iterator[str]:
    account = diagnosis.account
    if account.lines and sum(line.total_ns for line in account.lines) != account.total_ns:
        yield "The lines of the account do not sum to its total."
    floor = sum(line.total_ns for line in account.lines if line.kind == "floor")
    if account.floor_lines and sum(line.total_ns for line in account.floor_lines) != floor:
        yield "The lines of the floor do not sum to it."
    parts = [round(line.ms, 1) for _, line, _ in shown.account_parts(diagnosis)]
    step = wording.decimals(diagnosis.step_ms, 1)
    if parts and wording.decimals(sum(parts), 1) != step:
        yield f"The parts that are shown sum to {sum(parts)}, and the step is shown as {step} ms."


def _budgets(diagnosis: Diagnosis) -> Iterator[str]:
    sums = [sum(budget.values()) for budget in diagnosis.budget_ms.values()]
    if sums and abs(sum(sums) / len(sums) - diagnosis.step_ms) > _SAME_MS:
        yield f"The budgets of ranks are {sum(sums) / len(sums)} ms a step, and the step is {diagnosis.step_ms} ms."


def _headline(diagnosis: Diagnosis) -> Iterator[str]:
    lines = {line.finding: line for line in diagnosis.account.lines if line.kind == "finding"}
    for finding in diagnosis.findings:
        line = lines.get(finding.id)
        if line and abs(line.ms - finding.cost_ms) > _SAME_MS:
            yield f"{finding.id} costs {finding.cost_ms} ms, and {line.ms} ms in the account."
    parts = diagnosis.headline_parts
    first = next((one for one in diagnosis.findings if one.rule == diagnosis.verdict), None)
    if parts and first and parts.cost != wording.duration(first.cost_ms):
        yield f"The headline says {parts.cost}, and its finding {wording.duration(first.cost_ms)}."
    if parts and parts.step != wording.duration(diagnosis.step_ms):
        yield f"The headline's step is {parts.step}, and the step {wording.duration(diagnosis.step_ms)}."


def _of_every(diagnosis: Diagnosis) -> Iterator[str]:
    step = wording.duration(diagnosis.step_ms)
    for finding in (*diagnosis.findings, *diagnosis.opportunities):
        for found in _OF_EVERY.finditer(finding.title):
            if found[1] != step and not re.search(r"\branks?\b", finding.title, re.IGNORECASE):
                yield f"{finding.id}: a step of {found[1]} is said, of no named rank, and the step is {step}."


def _what_if(result: engine.Result) -> Iterator[str]:
    diagnosis = result.diagnosis
    serious = [one for one in diagnosis.findings if one.severity != Severity.INFO.label and one.cost_ms > 0]
    left = diagnosis.step_ms - sum(one.cost_ms for one in serious)
    prospect = result.savings.without([one.id for one in serious])
    if serious and abs(prospect.without_ms - left) > _SHOWN_MS:
        yield f"The step without its findings is {left} ms, and {prospect.without_ms} ms by what-if."


def _spelled(result: engine.Result) -> Iterator[str]:
    diagnosis = result.diagnosis
    said = io.StringIO()
    console = Console(file=said, width=200, no_color=True)
    terminal.diagnosed(console, result, verbose=True)
    texts = {"terminal": " ".join(said.getvalue().split()), "Markdown": markdown.document([result])}
    figures = {"the step": diagnosis.step_ms}
    figures |= {one.id: one.cost_ms for one in diagnosis.findings if one.cost_ms > 0}
    for place, text in texts.items():
        for name, value in figures.items():
            if wording.duration(value) not in text.replace("\N{NO-BREAK SPACE}", " "):
                yield f"{place} does not say {name} as {wording.duration(value)}."


def _idle(result: engine.Result) -> Iterator[str]:
    job, diagnosis = result.job, result.diagnosis
    for finding in (*diagnosis.findings, *diagnosis.opportunities):
        for seen in finding.evidence:
            if not seen.what.startswith("GPU idle"):
                continue
            index = job.ranks.tolist().index(seen.rank)
            owner, start, end = lanes.pieces(job, index, job.step_index[index])
            runs = np.minimum(end, seen.end_ns) - np.maximum(start, seen.start_ns)
            busy_ns = int(runs[(runs > 0) & np.isin(owner, _BUSY)].sum())
            if busy_ns > MOST_BUSY * (seen.end_ns - seen.start_ns):
                yield (
                    f"{finding.id}: {seen.what!r} of rank {seen.rank}, step {seen.step}, where its GPU is busy for "
                    f"{wording.ms(busy_ns)} of {wording.ms(seen.end_ns - seen.start_ns)}."
                )


def compared_costs(before: engine.Result, after: engine.Result) -> Iterator[str]:
    """What a comparison says of findings, where it is not what the two diagnoses say."""
    for change in build.compare(before, after).findings:
        for result, value in ((before, change.before_ms), (after, change.after_ms)):
            cost = sum(one.cost_ms for one in result.diagnosis.findings if one.rule == change.rule)
            if abs(cost - value) > _SAME_MS:
                yield f"{change.rule} costs {cost} ms in {result.diagnosis.name}, and {value} ms in the comparison."


def simulated_results(shared: Path, seed: int, jobs: Iterable[int]) -> Iterator[engine.Result]:
    """Diagnoses of simulated.py's jobs with these numbers."""
    with tempfile.TemporaryDirectory() as folder:
        player = Player(shared, Path(folder))
        for number in jobs:
            rng, kind, name = numbered(seed, number)
            player.write(player.draw(kind, rng), name)
            run = Path(folder) / name
            yield from results([run])
            shutil.rmtree(run)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what each run breaks, and how many break nothing; returns 1 if one breaks any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--simulated", type=int, metavar="JOBS", help="of random jobs; FOLDER has tools/simulate.py")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first job")
    options = parser.parse_args(arguments)
    jobs = range(options.first, options.first + (options.simulated or 0))
    made = simulated_results(options.folders[0], options.seed, jobs) if jobs else results(options.folders)
    runs = good = 0
    last: engine.Result | None = None
    for result in made:
        said = [*contradictions(result), *(compared_costs(last, result) if last else ())]
        last = result
        runs += 1
        good += not said
        for sentence in said:
            print(f"{result.diagnosis.name}: {sentence}")
    print(f"{good} of {runs} runs say one number for one thing.")
    return int(good < runs)


if __name__ == "__main__":
    sys.exit(main())
