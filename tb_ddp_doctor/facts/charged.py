"""Which rules found faults: what they are charged with is no opportunity once more."""

from __future__ import annotations

import msgspec

from tb_ddp_doctor.facts.facts import Facts, fact


class Charged(msgspec.Struct, frozen=True):
    """Ids of the rules that found faults; empty while faults are looked for."""

    rules: frozenset[str] = frozenset()


@fact
def charged(_: Facts) -> Charged:
    """Nothing, until all faults are known: then `account.looks` says which."""
    return Charged()
