"""What rules ask for."""

from __future__ import annotations

import pytest
from traces import MS, job, ranks

from tb_ddp_doctor.digest.model import RankOwner
from tb_ddp_doctor.facts import Facts, MissingFactError
from tb_ddp_doctor.facts.arrivals import Arrivals
from tb_ddp_doctor.facts.evidence_locator import Places
from tb_ddp_doctor.facts.host import Loaders
from tb_ddp_doctor.facts.transfers import Transfers
from tb_ddp_doctor.rules.support.asked_facts import FACTS

TWO_STEPS = ranks(
    """
    rank# step |1
          host      [fwd]
          gpu       [fwd........]
          nccl                   [ar..]
    """,
    steps=2,
)


@pytest.fixture
def places() -> Places:
    given = Facts(job(TWO_STEPS)).get(FACTS[Places])
    assert isinstance(given, Places)
    return given


@pytest.fixture
def start(places: Places) -> int:
    """Start of the first step."""
    return places.window(0, 0, "").start_ns


def test_a_window_is_the_whole_step_of_a_rank(places: Places) -> None:
    first, second = places.window(0, 0, "first"), places.window(0, 1, "second")
    assert (first.rank, first.step, second.step) == (0, 1, 2)
    assert second.start_ns == first.end_ns
    assert first.end_ns - first.start_ns == 24 * MS


def test_the_longest_piece_of_an_owner_is_found(places: Places, start: int) -> None:
    found = places.longest(0, 0, RankOwner.COMPUTE, "")
    assert (found.start_ns - start, found.end_ns - start) == (5 * MS, 18 * MS)


def test_without_a_piece_of_the_owner_it_is_the_whole_step(places: Places) -> None:
    whole = places.window(0, 0, "The whole step: it has no stretch of sync on this rank.")
    assert places.longest(0, 0, RankOwner.SYNC, "GPU idle while the CPU syncs.") == whole


@pytest.mark.parametrize(
    ("stretch", "seen"),
    [
        ((2, 9), (1, 2, 9)),
        ((20, 26), (1, 20, 24)),
        ((22, 30), (2, 24, 30)),
        ((-5, 3), (1, 0, 3)),
        ((40, 60), (2, 40, 48)),
    ],
)
def test_a_stretch_lies_in_the_step_that_has_most_of_it(
    places: Places, start: int, stretch: tuple[int, int], seen: tuple[int, int, int]
) -> None:
    found = places.between(0, start + stretch[0] * MS, start + stretch[1] * MS, RankOwner.HOST, "")
    assert found is not None
    assert (found.step, (found.start_ns - start) / MS, (found.end_ns - start) / MS) == seen


@pytest.mark.parametrize("stretch", [(-9, -2), (50, 60), (7, 7), (9, 7)])
def test_a_stretch_outside_of_all_steps_is_nowhere(places: Places, start: int, stretch: tuple[int, int]) -> None:
    assert places.between(0, start + stretch[0] * MS, start + stretch[1] * MS, RankOwner.HOST, "") is None


@pytest.mark.parametrize("kind", [Arrivals, Transfers, Loaders])
def test_a_fact_that_is_missing_says_what_would_be_needed(kind: type) -> None:
    facts = Facts(job("gpu [a]"))
    for _ in range(2):
        with pytest.raises(MissingFactError, match=r"\.$|\)\.$"):
            facts.get(FACTS[kind])
