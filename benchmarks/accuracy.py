"""How right the doctor is on jobs whose faults are known.

    python benchmarks/accuracy.py CORPUS

CORPUS is a directory of runs with a `truth.json`: for each run the injected rule ("rule", null if nothing is wrong),
its rank and cause where it has them, the step times with and without the profiler, the true cost in ms per step where
it was measured, and `accept`: other rules that may stand above info there, because the job or its tracing has them.

A row is right if the costliest finding above info is the injected rule or an accepted one (`healthy` where nothing
is wrong, where the fault costs under 3 % of the step, or where no rule of ours looks for it), with the true rank and
cause where it is the injected one. A diagnosis that contradicts itself (`consistency`) fails the corpus. A cost is
judged where tracing left the step within 25 % of the untraced one, in percent of the traced step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))
from consistency import broken

from tb_ddp_doctor import engine
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.findings import Diagnosis, Finding, Severity
from tb_ddp_doctor.rules import CATALOGUE


@dataclass(frozen=True)
class Row:
    """One run against its truth."""

    name: str
    truth: str
    verdict: str
    is_right: bool
    is_covered: bool
    ranks: str
    cause: str
    #: ms per step; None where unknown.
    predicted_ms: float | None
    true_ms: float | None
    #: Percent of the traced step; None where it is not judged.
    error: float | None
    false_alarms: tuple[str, ...]
    #: Where the diagnosis contradicts itself.
    broken: tuple[str, ...]


def judge(diagnosis: Diagnosis, entry: dict[str, Any]) -> Row:
    """Hold a diagnosis against a run's entry in truth.json."""
    truth = entry["truth"]
    rule = truth["rule"]
    accepted = {*entry["accept"], rule}
    alarms = [finding for finding in diagnosis.findings if finding.severity != Severity.INFO.label]
    injected = next((finding for finding in diagnosis.findings if finding.rule == rule), None)
    traced = entry.get("traced_step_ms")
    true_ms = entry["cost_ms"]
    is_small = rule is None or rule not in CATALOGUE or (true_ms is not None and true_ms < 0.03 * entry["step_ms"])
    verdict_is_right = diagnosis.verdict in accepted or (diagnosis.verdict == "healthy" and is_small)
    details_are_right = injected is None or _details_match(injected, truth)
    is_comparable = true_ms is not None and traced is not None and abs(traced / entry["step_ms"] - 1) <= 0.25
    return Row(
        name=diagnosis.name,
        truth=rule or "-",
        verdict=diagnosis.verdict,
        is_right=verdict_is_right and details_are_right,
        is_covered=rule is None or rule in CATALOGUE,
        ranks=",".join(map(str, injected.ranks)) if injected else "",
        cause=(injected.cause or "") if injected else "",
        predicted_ms=injected.cost_ms if injected else None,
        true_ms=true_ms,
        error=100 * (injected.cost_ms - true_ms) / traced if injected and is_comparable else None,
        false_alarms=tuple(finding.rule for finding in alarms if finding.rule not in accepted),
        broken=tuple(broken(diagnosis)),
    )


def _details_match(finding: Finding, truth: dict[str, Any]) -> bool:
    ranks = truth.get("rank")
    expected = ranks if isinstance(ranks, list) else [ranks]
    rank_matches = ranks is None or list(finding.ranks) == expected
    return rank_matches and truth.get("cause", finding.cause) == finding.cause


_HEADINGS = ("job", "injected", "verdict", "", "ranks", "cause", "predicted ms", "true ms", "error %", "false alarms")


def main() -> int:
    """Print the table; returns 1 if any row is wrong."""
    parser = argparse.ArgumentParser(description="Compare diagnoses with known faults.")
    parser.add_argument("corpus", type=Path)
    corpus = parser.parse_args().corpus
    truth = json.loads((corpus / "truth.json").read_text())
    rows = [judge(engine.diagnose(run).diagnosis, truth[run.name]) for run in discover(corpus) if run.name in truth]
    console = Console(width=160)
    table = Table(box=None)
    for heading in _HEADINGS:
        table.add_column(heading, no_wrap=True, justify="right" if heading.endswith(("ms", "%")) else "left")
    for row in rows:
        numbers = ["" if value is None else f"{value:.1f}" for value in (row.predicted_ms, row.true_ms, row.error)]
        truth_text = row.truth if row.is_covered else f"({row.truth})"
        mark = "ok" if row.is_right else "WRONG"
        table.add_row(
            row.name, truth_text, row.verdict, mark, row.ranks, row.cause, *numbers, ",".join(row.false_alarms)
        )
    console.print(table)
    errors = [abs(row.error) for row in rows if row.error is not None]
    console.print(
        f"{sum(row.is_right for row in rows)} of {len(rows)} right, "
        f"{sum(bool(row.false_alarms) for row in rows)} with false alarms; "
        f"cost error of {len(errors)} jobs: median {statistics.median(errors):.1f} %, worst {max(errors):.1f} % "
        "of the step. (In brackets: faults that no rule looks for yet.)"
        if errors
        else "No cost can be judged."
    )
    for row in rows:
        for sentence in row.broken:
            console.print(f"{row.name}: {sentence}", highlight=False)
    return int(not all(row.is_right and not row.false_alarms and not row.broken for row in rows))


if __name__ == "__main__":
    sys.exit(main())
