"""Write the part of the traces that shows a finding."""

from __future__ import annotations

import argparse

from rich.console import Console

from tb_ddp_doctor import wording
from tb_ddp_doctor.commands.output import say_written
from tb_ddp_doctor.commands.runs import one_result
from tb_ddp_doctor.report.shown import where
from tb_ddp_doctor.slices import cut, files


def run(options: argparse.Namespace, errors: Console) -> int:
    """Write the slice."""
    cache, result = one_result(options, errors)
    findings = result.diagnosis.findings
    if options.finding > len(findings):
        raise ValueError(f"--finding {options.finding}: {_there_are(result.diagnosis.name, 'findings', len(findings))}")
    finding = findings[options.finding - 1]
    if options.evidence > len(finding.evidence):
        raise ValueError(
            f"--evidence {options.evidence}: {_there_are(finding.rule, 'pieces of evidence', len(finding.evidence))}"
        )
    evidence = finding.evidence[options.evidence - 1]
    seen = cut.window(result.job, finding, evidence)
    files.save(cut.cut(result, cache, cut.with_margin(seen)), options.output)
    length = (seen.end_ns - seen.start_ns) / 1e6
    say_written(
        errors, options.output, f"{finding.rule}: {where(evidence, result.job)} ({wording.decimals(length, 1)} ms)"
    )
    return 0


def _there_are(of: str, what: str, count: int) -> str:
    """A sentence that says what there is to choose from; `what` is a plural."""
    if not count:
        return f"{of} has no {what}, so there is nothing to write."
    return f"{of} has {count} {what}, which ddp-doctor diagnose -v lists: name a number from 1 to {count}."
