"""Which rules find their fault in what each recorder leaves of the same job: the table of docs/recorders.md."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import nsys_files
import traces
from examples import EXAMPLES, Example

from tb_ddp_doctor.digest.build import digest
from tb_ddp_doctor.discover.runs import discover
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.job.build import JobError, build
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules.support.base import run
from tb_ddp_doctor.trace.model import RankTrace
from tb_ddp_doctor.trace.reader import read

#: How an export is made, by the column's head.
EXPORTS: Mapping[str, dict[str, bool]] = {
    "nsys": {"operators": False},
    "nsys, emit_nvtx": {},
    "nsys, emit_nvtx, payloads": {"payloads": True},
}


def found(rule: str, example: Example, export: Mapping[str, bool] | None) -> bool:
    """Whether a rule finds its example's fault in Kineto's traces, or in the export made of them."""
    options = dict(example.faulty.options)
    if export is None:
        return _finds(rule, traces.read(example.faulty.text, **options))
    return _finds(rule, _exported(traces.read(example.faulty.text, **{"metadata": "kernel", **options}), export))


def _exported(drawn: Mapping[int, RankTrace], export: Mapping[str, bool]) -> dict[int, RankTrace]:
    with tempfile.TemporaryDirectory() as folder:
        (job,) = discover(nsys_files.write(Path(folder) / "job.sqlite", drawn, **export))
        return {file.rank: read(file.path) for file in job.files}


def _finds(rule: str, ranks: Mapping[int, RankTrace]) -> bool:
    sizes = [trace.header.world_size for trace in ranks.values() if trace.header.world_size]
    nodes = {rank: f"host{rank}" for rank in ranks}
    try:
        job = build("drawn", {rank: digest(trace) for rank, trace in ranks.items()}, nodes, max(sizes, default=None))
    except JobError:
        return False
    return run(CATALOGUE[rule], Facts(job))[1] is not None


def table() -> str:
    """A row for each rule, a column for each recorder."""
    rows = ["| rule | torch.profiler | " + " | ".join(EXPORTS) + " |", "|---|---|" + "---|" * len(EXPORTS)]
    return "\n".join([*rows, *map(row, sorted(EXAMPLES))])


def row(rule: str) -> str:
    """A rule's row."""
    cells = ["yes" if found(rule, EXAMPLES[rule], export) else "no" for export in (None, *EXPORTS.values())]
    return f"| [{rule}](rules/{rule}.md) | {' | '.join(cells)} |"
