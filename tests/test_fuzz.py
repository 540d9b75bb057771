"""Kept and random inputs for each reader of files that anybody may have written; `fuzzing` says what a find is."""

from __future__ import annotations

import pytest
from fuzzing import CORPUS, finds, targets

#: Cases of each target beside the kept ones: a reader takes some milliseconds, a whole diagnosis a tenth of a second.
CASES = {"digest": 12, "trace": 25, "pftrace": 25, "sqlite": 25, "history": 60}
MORE = 150


def test_every_kept_case_is_of_a_target() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} <= set(targets())


@pytest.mark.parametrize("name", targets())
def test_what_anybody_may_have_written_is_read_or_refused(name: str) -> None:
    found = list(finds(name, seed=0, cases=CASES.get(name, MORE), seconds=600))
    assert not found, "\n\n".join(f"{case[:200]!r}\n{said}" for case, said in found)
