"""The job without the faults found so far: `account.looks` replaces both facts as it finds more faults."""

from __future__ import annotations

import msgspec

from tb_ddp_doctor.facts import Facts, fact
from tb_ddp_doctor.facts.iterations import waits_for_requests
from tb_ddp_doctor.replay.whatif import WhatIf


class Charged(msgspec.Struct, frozen=True):
    """Ids of the rules that found faults: no opportunity may count their time again. Empty until all are found."""

    rules: frozenset[str] = frozenset()


@fact
def charged(_: Facts) -> Charged:
    """No rule, as long as faults are looked for."""
    return Charged()


@fact
def whatif(facts: Facts) -> WhatIf:
    """The job's steps as they were recorded, which a rule plays again without the fault that it found."""
    played = WhatIf.of(facts.job)
    return played.without_idle(waits_for_requests(facts.job, played))
