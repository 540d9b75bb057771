"""What rules may ask for, by parameter name: small views of a Job, or `MissingInputError` with what would be needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from tb_ddp_doctor.facts import arrivals, compute, evidence_locator, frame, host, memory, whatif
from tb_ddp_doctor.facts.change import Removed
from tb_ddp_doctor.job.model import Budget, Job


def _budget(job: Job) -> Budget:
    return job.budget


def _whatif(job: Job) -> whatif.WhatIf:
    return whatif.WhatIf.of(job)


#: Every input, by the name of a rule's parameter.
PROVIDERS: dict[str, Callable[[Job], object]] = {
    "budget": _budget,
    "whatif": _whatif,
    **frame.PROVIDERS,
    **arrivals.PROVIDERS,
    **compute.PROVIDERS,
    **host.PROVIDERS,
    **memory.PROVIDERS,
    **evidence_locator.PROVIDERS,
}


class Inputs:
    """The inputs of one job, each made when a rule first asks for it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._made: dict[str, object] = {}

    def after(self, fixed: Removed) -> Inputs:
        """The inputs once something is fixed, as far as a replay of the steps shows it."""
        later = Inputs(self.job)
        later._made = self._made | {"whatif": self.whatif.after(fixed)}
        return later

    @property
    def whatif(self) -> whatif.WhatIf:
        """What the job's steps would take without something."""
        return cast(whatif.WhatIf, self["whatif"])

    def __getitem__(self, name: str) -> object:
        """The input that a parameter of this name takes. Raises MissingInputError."""
        if name not in self._made:
            self._made[name] = PROVIDERS[name](self.job)
        return self._made[name]
