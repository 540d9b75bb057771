"""Clocks are put in line by the ends of matched collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from matches import table
from msgspec.structs import replace
from traces import MS, job, repeat

from tb_ddp_doctor.job.clock import ClockFit, fit
from tb_ddp_doctor.job.collectives import Matched
from tb_ddp_doctor.job.segments import Segments

US = 1_000
SECOND = 1_000_000_000
EPOCH = 1_700_000_000 * SECOND
PPM = 1e-6


def ended(
    clocks: Sequence[tuple[float, float]],
    *,
    noise_ns: float = 2 * US,
    groups: Sequence[Sequence[int]] = (),
    count: int = 200,
    bias_ns: Mapping[int, float] | None = None,
) -> tuple[Matched, np.ndarray[tuple[int, int], np.dtype[np.int64]]]:
    """Collectives over two seconds, by ranks whose clocks are ahead by an offset (ns) and a drift; and their true ends.

    `groups` take turns; `bias_ns` is by how much later than the others a rank always ends.
    """
    random = np.random.default_rng(7)
    ranks = len(clocks)
    true = np.linspace(0, 2 * SECOND, count)[:, None] + random.normal(0, noise_ns, (count, ranks))
    true += [(bias_ns or {}).get(rank, 0.0) for rank in range(ranks)]
    has_part = np.zeros((count, ranks), np.bool_)
    for i in range(count):
        has_part[i, list(groups[i % len(groups)]) if groups else slice(None)] = True
    shown = np.stack([true[:, rank] * (1 + drift) + offset for rank, (offset, drift) in enumerate(clocks)], axis=1)
    end = EPOCH + np.rint(shown).astype(np.int64)[has_part]
    call, rank = np.nonzero(has_part)
    nothing = np.zeros(count, np.int64)
    matched = Matched(
        kind=("all_reduce",) * count,
        group=("0",) * count,
        group_size=nothing + ranks,
        bytes=nothing,
        step=nothing,
        segments=Segments.of_sizes(has_part.sum(axis=1)),
        rank=rank,
        call=call,
        arrival_ns=end - 50 * US,
        end_ns=end,
        sends=np.zeros(len(end), np.bool_),
        together=np.ones(count, np.bool_),
        unmatched=(0,) * ranks,
        refused=0,
    )
    return matched, np.rint(true).astype(np.int64) + EPOCH


def corrected(fitted: ClockFit, matched: Matched) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Ends on the common clock, nan where absent, ns from the first rank's first."""
    end = matched.end_ns - EPOCH - fitted.correction(matched.rank, matched.end_ns)
    return table(matched, end.astype(np.float64), np.nan)


def test_offsets_of_nodes_are_recovered() -> None:
    matched, _ = ended([(0, 0), (40 * MS, 0), (-3 * SECOND, 0)])
    fitted = fit(matched, ("a", "b", "c"))
    assert fitted.offset_ns == pytest.approx([0, 40 * MS, -3 * SECOND], abs=2 * US)
    assert fitted.drift.tolist() == [0, 0, 0]


@pytest.mark.parametrize(("ahead_ns", "found_ns"), [(40 * MS, 40 * MS), (-3 * MS, -3 * MS), (20 * US, 0)])
def test_nodes_that_only_messages_join_are_put_within_their_bounds(ahead_ns: int, found_ns: int) -> None:
    """Ranks 1 and 2 send around a ring: their kernels meet others too, wait for up to 3 ms, and end apart."""
    matched, _ = ended([(0, 0), (0, 0), (ahead_ns, 0), (ahead_ns, 0)], groups=[(0, 1), (2, 3), (1, 2)])
    random = np.random.default_rng(3)
    is_message = np.arange(len(matched)) % 3 == 2
    waits, longer = (random.integers(0, 3 * MS, (len(matched), 2)) * is_message[:, None] for _ in range(2))
    # One of the two comes last, and one of the two ends as soon as the message has moved.
    waits[np.arange(len(matched)), random.integers(0, 2, len(matched))] = 0
    longer[np.arange(len(matched)), random.integers(0, 2, len(matched))] = 0
    matched = replace(
        matched,
        arrival_ns=matched.arrival_ns - waits.ravel(),
        end_ns=matched.end_ns + longer.ravel(),
        together=~is_message,
    )
    fitted = fit(matched, ("a", "a", "b", "b"))
    assert fitted.offset_ns == pytest.approx([0, 0, found_ns, found_ns], abs=100 * US if found_ns else 0)


def test_drift_is_recovered_from_a_long_trace() -> None:
    matched, _ = ended([(0, 0), (MS, 50 * PPM)])
    fitted = fit(matched, ("a", "b"))
    assert fitted.drift[1] == pytest.approx(50 * PPM, rel=0.05)
    assert fitted.offset_ns[1] == pytest.approx(MS, abs=5 * US)


def test_all_ends_agree_after_correction_whatever_the_clocks() -> None:
    matched, _ = ended([(0, 80 * PPM), (5 * SECOND, -90 * PPM), (-7 * SECOND, 0)], noise_ns=US)
    ends = corrected(fit(matched, ("a", "b", "c")), matched)
    assert np.ptp(ends, axis=1).max() < 10 * US


def test_the_residual_is_the_spread_that_is_left() -> None:
    quiet, _ = ended([(0, 0), (40 * MS, 0)], noise_ns=US)
    noisy, _ = ended([(0, 0), (40 * MS, 0)], noise_ns=100 * US)
    assert fit(quiet, ("a", "b")).residual_ns == pytest.approx(US, rel=0.5)
    assert fit(noisy, ("a", "b")).residual_ns == pytest.approx(100 * US, rel=0.5)


def test_the_first_rank_keeps_its_clock() -> None:
    matched, _ = ended([(9 * MS, 30 * PPM), (0, 0), (0, 0)])
    fitted = fit(matched, ("a", "b", "c"))
    assert (fitted.offset_ns[0], fitted.drift[0]) == (0, 0)


def test_ranks_of_one_node_share_a_clock() -> None:
    matched, _ = ended([(0, 0), (0, 0), (40 * MS, 0), (40 * MS, 0)], bias_ns={3: 20 * US})
    fitted = fit(matched, ("a", "a", "b", "b"))
    assert fitted.offset_ns[2] == fitted.offset_ns[3]


def test_ranks_of_one_name_with_clocks_apart_do_not() -> None:
    matched, _ = ended([(0, 0), (40 * MS, 0)])
    assert fit(matched, ("container", "container")).offset_ns[1] == pytest.approx(40 * MS, abs=2 * US)


def test_ranks_without_a_node_have_clocks_of_their_own() -> None:
    matched, _ = ended([(0, 0), (300 * US, 0)])
    assert fit(matched, ("", "")).offset_ns[1] == pytest.approx(300 * US, abs=2 * US)


def test_an_offset_within_the_noise_is_none() -> None:
    matched, _ = ended([(0, 0), (50 * US, 0)], noise_ns=100 * US)
    assert fit(matched, ("a", "b")).offset_ns.tolist() == [0, 0]


def test_drift_within_the_noise_is_none() -> None:
    matched, _ = ended([(0, 0), (0, 5 * PPM)], noise_ns=100 * US)
    assert fit(matched, ("a", "b")).drift.tolist() == [0, 0]


def test_few_collectives_tell_no_drift() -> None:
    matched, _ = ended([(0, 0), (0, 50 * PPM)], count=7)
    assert fit(matched, ("a", "b")).drift.tolist() == [0, 0]


def test_no_clock_drifts_as_nonsense_does() -> None:
    matched, _ = ended([(0, 0), (0, 0.5)])
    assert fit(matched, ("a", "b")).drift.tolist() == [0, 0]


def test_single_collectives_that_ended_apart_move_nothing() -> None:
    matched, _ = ended([(0, 0), (MS, 0)])
    matched.end_ns[1::20] += 30 * MS
    assert fit(matched, ("a", "b")).offset_ns[1] == pytest.approx(MS, abs=2 * US)


def test_a_chain_of_groups_joins_ranks_that_never_meet() -> None:
    matched, _ = ended([(0, 0), (2 * MS, 0), (5 * MS, 0)], groups=[(0, 1), (1, 2)])
    assert fit(matched, ("a", "b", "c")).offset_ns == pytest.approx([0, 2 * MS, 5 * MS], abs=3 * US)


def test_groups_that_never_meet_are_each_put_in_line() -> None:
    clocks = [(0, 0), (2 * MS, 0), (100 * MS, 0), (105 * MS, 0)]
    matched, _ = ended(clocks, groups=[(0, 1), (2, 3)])
    fitted = fit(matched, ("a", "b", "c", "d"))
    assert fitted.offset_ns == pytest.approx([0, 2 * MS, 0, 5 * MS], abs=3 * US)
    assert fitted.residual_ns is not None and fitted.residual_ns < 10 * US


def test_a_group_keeps_its_first_clock_though_another_group_holds_the_first_rank() -> None:
    matched, _ = ended([(2 * MS, 0), (0, 0), (0, 0), (0, 0)], groups=[(0, 1), (2, 3)])
    fitted = fit(matched, ("a", "b", "c", "d"))
    assert fitted.offset_ns == pytest.approx([0, -2 * MS, 0, 0], abs=3 * US)


def test_a_rank_without_collectives_has_no_say_in_its_nodes_clock() -> None:
    matched, _ = ended([(0, 0), (400 * US, 0), (0, 0)], groups=[(0, 1)])
    assert fit(matched, ("a", "b", "b")).offset_ns[1] == pytest.approx(400 * US, abs=2 * US)


def test_without_collectives_nothing_is_known() -> None:
    matched, _ = ended([(0, 0), (0, 0)], count=0)
    fitted = fit(matched, ("a", "b"))
    assert fitted.residual_ns is None
    assert fitted.correction(1, np.array([EPOCH])).tolist() == [0]


def test_one_collective_gives_an_offset() -> None:
    matched, _ = ended([(0, 0), (40 * MS, 0)], count=1, noise_ns=0)
    assert fit(matched, ("a", "b")).offset_ns.tolist() == [0, 40 * MS]


def test_skewed_clocks_change_no_budget() -> None:
    one_step = """
        rank0 step |1
              gpu  [work....]
              nccl           [ar......]
        rank1 step |1
              gpu  [work........]
              nccl               [ar..]
    """
    text = repeat(one_step, 4)
    straight, skewed = job(text), job(text, clock_ms={1: 1234.5})
    assert (straight.budget.owner_ns == skewed.budget.owner_ns).all()
    assert skewed.clock.offset_ns.tolist() == [0, 1234.5 * MS]
