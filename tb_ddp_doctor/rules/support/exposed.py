"""Evidence of communication that no compute hides."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.findings import Evidence
from tb_ddp_doctor.replay.whatif import WhatIf


def most_exposed(
    exposed_ns: NDArray[Any], whatif: WhatIf, places: Places, what: str = "communication: no compute beside it."
) -> tuple[Evidence, ...]:
    """The longest exposed communication in the step that has most of it, by step, shape (S,), ns: on the rank that
    waits least there.
    """
    step = int(exposed_ns.argmax())
    return (places.longest(int(whatif.slowest[step]), step, RankOwner.COMMUNICATION, f"Exposed {what}"),)
