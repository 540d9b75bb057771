"""Which ranks the captures of a start agree on."""

from __future__ import annotations

import numpy as np
import pytest

from tb_ddp_doctor.capture.agreement import agreed_ranks


@pytest.mark.parametrize(
    ("named", "ranks", "agreed"),
    [
        ([], 4, ()),
        ([(2,)] * 4, 4, ()),
        ([(2,)] * 5, 4, (2,)),
        ([(2,)] * 3, 64, (2,)),
        ([(2,), (), (2, 3), (0, 1, 2, 3), (2,), (1, 2), (2,), (2,), (2,), ()], 4, (2,)),
        ([(0,), (1,), (2,), (3,)] * 4, 4, ()),
        ([(0, 1)] * 9 + [(2,)] * 2, 8, (0, 1)),
        ([(0,)] * 50, 1, ()),
    ],
)
def test_captures_agree_on_ranks_that_they_name_more_often_than_chance(
    named: list[tuple[int, ...]], ranks: int, agreed: tuple[int, ...]
) -> None:
    assert agreed_ranks(named, ranks) == agreed


@pytest.mark.parametrize("ranks", [2, 4, 64])
def test_captures_that_name_ranks_by_chance_rarely_agree(ranks: int) -> None:
    """Of 1,000 jobs of 15 captures each, all captures of which name a rank by chance, 10 may agree on one."""
    names = np.random.default_rng(0).integers(0, ranks, (1000, 15))
    assert sum(bool(agreed_ranks([(rank,) for rank in job.tolist()], ranks)) for job in names) <= 15
