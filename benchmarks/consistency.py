"""Whether diagnoses agree with themselves: no contradiction, no impossible saving, no headline dearer than its fixes.

    python benchmarks/consistency.py FOLDER...

Each run below each FOLDER is diagnosed, and has to hold, whatever is true of it:

1. The three witnesses (who waits, where the critical path lies, what the replay saves) do not contradict each other.
2. No rule ends in an error, such as that of a fix that saves more than it removes from all ranks.
3. The fix that the headline names, or the set of fixes where its sentence names further ones, saves at least 80 % of
   what the headline says when it is played alone in the recorded job.
4. The floor is no shorter than the GPU work in it: on no rank do the steps without any fault end before their work.

Prints what each run breaks; exits with 1 if one breaks any.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tb_ddp_doctor import engine
from tb_ddp_doctor.cache import Cache
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.findings import Diagnosis, Finding, Severity

#: The fixes of the headline save at least this share of what it says.
HEADLINE_SAVES = 0.8
#: What rounding may take off the floor.
_ROUNDED = 1e-4


def headline_finding(diagnosis: Diagnosis) -> Finding | None:
    """The finding that the headline is about; None where it is about none."""
    first = next((one for one in diagnosis.findings if one.rule == diagnosis.verdict), None)
    return None if first is None or first.severity == Severity.INFO.label else first


def headline_saves(diagnosis: Diagnosis) -> float:
    """The share of what the headline says that the fixes which it names save alone; 1 where it names none."""
    first = headline_finding(diagnosis)
    if first is None:
        return 1.0
    return (first.together.saved_ms if first.together else first.alone_ms) / max(first.cost_ms, 1e-9)


def broken(diagnosis: Diagnosis) -> Iterator[str]:
    """What a diagnosis says against itself, a sentence each."""
    yield from diagnosis.contradictions
    for outcome in diagnosis.outcomes:
        if outcome.status == "error":
            yield f"{outcome.rule} failed: {outcome.reason}"
    share = headline_saves(diagnosis)
    if share < HEADLINE_SAVES:
        yield f"The fixes of the headline save {share:.0%} of what it says: {diagnosis.headline}"


def played_share(result: engine.Result) -> float | None:
    """The share of what the headline says that its fixes save, played once more by the names that users give to
    `whatif --without`; None where the headline names none.
    """
    first = headline_finding(result.diagnosis)
    if first is None:
        return None
    named = [first.id, *(first.together.findings if first.together else ())]
    fixed = result.savings.without(named)
    return (fixed.step_ms - fixed.without_ms) / max(first.cost_ms, 1e-9)


def floor_is_below_its_work(result: engine.Result) -> bool:
    """Whether the steps of some rank, played without any fault, take less time than the GPU work that is left."""
    whatif, without = result.savings.whatif, result.savings.faultless
    if whatif.replay is None:
        return False
    left_ns = whatif.replay.remaining_device_ns(without).sum(axis=1)
    # Each row and step is rounded to a nanosecond.
    return bool((whatif.step_ns(without).sum(axis=1) < left_ns - _ROUNDED * left_ns).any())


def results(folders: Sequence[Path]) -> Iterator[engine.Result]:
    """What is found of each run below some folders; a run without an answer is said."""
    for run in (run for folder in folders for run in discover(folder)):
        try:
            yield engine.diagnose(run, reading=engine.Reading(cache=Cache(None)))
        except engine.RunError as error:
            print(f"{run.name}: no answer: {error}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what each run breaks, and how many break nothing; returns 1 if one breaks any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    folders = parser.parse_args(arguments).folders
    runs = good = 0
    least = 1.0
    for result in results(folders):
        runs += 1
        said = list(broken(result.diagnosis))
        share = played_share(result)
        if share is not None:
            least = min(least, share)
            if share < HEADLINE_SAVES:
                said.append(f"Played by name, the fixes of the headline save {share:.0%} of what it says.")
        if floor_is_below_its_work(result):
            said.append("The floor is shorter than the GPU work in it.")
        good += not said
        for sentence in said:
            print(f"{result.diagnosis.name}: {sentence}")
    print(
        f"{good} of {runs} runs break nothing; of headlines with a fix it saves at least {least:.0%} of what they say."
    )
    return int(good < runs)


if __name__ == "__main__":
    sys.exit(main())
