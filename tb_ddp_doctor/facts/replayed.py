"""The replay of a job's steps, as rules ask for it."""

from __future__ import annotations

from tb_ddp_doctor.facts.facts import Facts, fact
from tb_ddp_doctor.replay.whatif import WhatIf


@fact
def whatif(facts: Facts) -> WhatIf:
    """The job's steps, to be played without this or that."""
    return WhatIf.of(facts.job)
