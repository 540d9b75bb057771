"""From a job to its diagnosis: what the rules say of it, and what that saves."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tb_ddp_doctor.account.assemble import Lacking, assemble
from tb_ddp_doctor.account.looks import look, look_for_opportunities
from tb_ddp_doctor.account.savings import Savings
from tb_ddp_doctor.choices import no_name
from tb_ddp_doctor.config.read import Settings
from tb_ddp_doctor.facts import Facts
from tb_ddp_doctor.facts.frame import frame
from tb_ddp_doctor.facts.without_faults import whatif
from tb_ddp_doctor.findings import Diagnosis
from tb_ddp_doctor.job.model import Job
from tb_ddp_doctor.mesh.mesh import Mesh
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules.support.base import Rule, configured

_log = logging.getLogger(__name__)


def rules_with(settings: Settings) -> list[Rule]:
    """All rules, with these thresholds. Raises ValueError if `settings` name an unknown rule or threshold."""
    unknown = set(settings) - set(CATALOGUE)
    if unknown:
        raise ValueError(no_name("rule", min(unknown), CATALOGUE))
    return [configured(rule, settings.get(name, {})) for name, rule in CATALOGUE.items()]


def examine(job: Job, rules: Iterable[Rule], lacking: Lacking) -> tuple[Diagnosis, Savings]:
    """Apply rules to a job, of which some files are `lacking` for other reasons than what its warnings say."""
    cut = {warning.file: None for warning in job.warnings if warning.kind == "lost-end"}
    lost = {warning.file: None for warning in job.warnings if warning.loses_events}
    named = {*cut, *(file for files in lacking.values() for file in files)}
    damaged = [file for file in (dict.fromkeys(job.damaged) | lost) if file not in named]
    lacking = {"incomplete": list(cut), "damaged": damaged, **lacking}
    facts = Facts(job)
    rules = tuple(rules)
    outcomes, all_faults = look([rule for rule in rules if not rule.is_opportunity], facts)
    more, opportunities = look_for_opportunities([rule for rule in rules if rule.is_opportunity], facts, all_faults)
    savings = Savings(all_faults, facts.get(whatif), job, opportunities, _mesh(facts))
    return assemble(facts, outcomes, savings, lacking, more), savings


def _mesh(facts: Facts) -> Mesh | None:
    """The dimensions of the job; None where finding them fails."""
    try:
        return facts.get(frame).mesh
    except Exception:
        _log.debug("finding the dimensions of the job failed", exc_info=True)
        return None
