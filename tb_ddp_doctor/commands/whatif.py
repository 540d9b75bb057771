"""Predict the step time of every run with some of its findings fixed."""

from __future__ import annotations

import argparse

from rich.console import Console

from tb_ddp_doctor.choices import no_name
from tb_ddp_doctor.commands.output import print_json
from tb_ddp_doctor.commands.runs import check_findings, diagnosed, discovered
from tb_ddp_doctor.report import terminal
from tb_ddp_doctor.rules import CATALOGUE, is_name


def run(options: argparse.Namespace, errors: Console) -> int:
    """Predict and print; 2 where no run can be diagnosed."""
    chosen = None if options.without is None else _finding_names(options.without)
    cache, runs = discovered(options, errors)
    results = diagnosed(options, errors, cache, runs)
    if results:
        check_findings("--without", chosen or (), results)
    predicted = {result.diagnosis.name: result.prospects(chosen) for result in results}
    if options.json:
        print_json(predicted)
        return 0 if results else 2

    console = Console(highlight=False)
    for result in results:
        terminal.predicted(console, result.diagnosis, predicted[result.diagnosis.name])
    return 0 if results else 2


def _finding_names(text: str) -> list[str]:
    """Ids of findings, or rules. Raises ValueError for what is neither."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not is_name(name):
            raise ValueError(f"--without: {no_name('rule', name, CATALOGUE)}")
    return names
