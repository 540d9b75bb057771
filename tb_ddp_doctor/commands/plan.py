"""Predict the step of every run with other buckets, ranks, links, dtypes, loaders or devices."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from tb_ddp_doctor.api import planned
from tb_ddp_doctor.calibration.load import load
from tb_ddp_doctor.choices import no_name
from tb_ddp_doctor.commands.output import print_json
from tb_ddp_doctor.commands.runs import check_findings, diagnosed, discovered
from tb_ddp_doctor.planning.answer import OVERVIEW
from tb_ddp_doctor.planning.model import PlanReport, Question
from tb_ddp_doctor.planning.questions import FIELDS, asked, values
from tb_ddp_doctor.report.plan import print_plan
from tb_ddp_doctor.rules import CATALOGUE, is_name


def run(options: argparse.Namespace, errors: Console) -> int:
    """Predict and print; 2 where no run can be diagnosed, or nothing that was asked can be predicted of any run."""
    calibrations = {}
    if options.links and Path(options.links).is_file():
        calibrations[options.links] = load(Path(options.links))
        options.links = None
    question, curves = _question(options, *calibrations)
    if unknown := [name for name in question.fixed if not is_name(name)]:
        raise ValueError(f"--fixed: {no_name('rule', unknown[0], CATALOGUE)}")
    cache, runs = discovered(options, errors)
    results = diagnosed(options, errors, cache, runs)
    if results:
        check_findings("--fixed", question.fixed, results)
    plans = [planned(result, question, curves, calibrations, results) for result in results]
    status = 0 if any(one.prediction or one.curves for one in plans) else 2
    if options.json:
        print_json(PlanReport(runs=tuple(plans)))
        return status

    console = Console(highlight=False)
    for one in plans:
        print_plan(console, one)
    return status


def _question(
    options: argparse.Namespace, links_of: str | None = None
) -> tuple[Question, Mapping[str, Sequence[object]]]:
    """What the options ask: one question, and curves; without any, an overview. Raises ValueError."""
    given = {name: values(name, text) for name in FIELDS if (text := getattr(options, name)) is not None}
    one, curves = asked(
        given,
        links_of=links_of,
        strong=options.strong,
        gathers_in_time=options.gathers_in_time,
        offload=options.offload,
        graphs=options.graphs,
        pin_memory=False if options.no_pin_memory else None,
        fixed=tuple(filter(None, (name.strip() for name in options.fixed.split(",")))),
    )
    return one, curves if curves or one != Question(strong=one.strong) else OVERVIEW
