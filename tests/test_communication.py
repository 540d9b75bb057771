"""What each kind of collective does in each group: volume, waiting, bandwidth, latency and overlap."""

from __future__ import annotations

import pytest
from traces import MS, job, ranks

from tb_ddp_doctor.facts.traffic import Traffic, bus_factor, communication


def of(text: str, **options: object) -> Traffic:
    """The only kind of collective in the only group."""
    (traffic,) = communication(job(text, **options))
    return traffic


ONE_LATE = """
    rank0 step |1
          gpu  [work....]
          nccl           [ar@10.......]
    rank1 step |1
          gpu  [work........]
          nccl               [ar@10...]
"""
#: Alpha is 3.7 ms, beta 0.08 ms per million bytes: eleven of 4 MB take 4 ms each, two of 32 MB 6 ms.
SIZES = """
    rank# step     |1
          gpu      [fwd]
          nccl          [ar][ar][ar][ar][ar][ar][ar][ar][ar][ar][ar][ar@8][ar@8]
"""


def test_volume_is_counted_by_the_step() -> None:
    traffic = of(ranks(SIZES, SIZES, steps=4))
    assert (traffic.kind, traffic.group, traffic.size, traffic.dtypes) == ("all_reduce", "0", 2, ("Float",))
    assert traffic.calls == 13
    assert traffic.bytes_per_step == (11 + 16) * 4e6
    assert traffic.ranks.tolist() == [0, 1]


def test_waiting_is_no_transfer() -> None:
    traffic = of(ONE_LATE)
    assert traffic.transfer_per_step_ns == 10 * MS
    assert traffic.wait_per_step_ns == 4 * MS / 2
    assert traffic.exposed_per_step_ns == 10 * MS


def test_bandwidth_is_that_of_nccl_tests() -> None:
    traffic = of(ONE_LATE)
    assert traffic.algorithm_rate == pytest.approx(40e6 / 10e-3)
    assert traffic.bus_rate == pytest.approx(traffic.algorithm_rate * 2 * (2 - 1) / 2)


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("all_reduce", 2 * 7 / 8),
        ("all_gather", 7 / 8),
        ("reduce_scatter", 7 / 8),
        ("all_to_all", 7 / 8),
        ("broadcast", 1),
        ("reduce", 1),
    ],
)
def test_links_carry_what_nccl_tests_say(kind: str, factor: float) -> None:
    assert bus_factor(kind, 8) == factor


def test_clocks_that_disagree_change_nothing() -> None:
    traffic = of(ONE_LATE, clock_ms={1: 700.0})
    assert traffic.transfer_per_step_ns == pytest.approx(10 * MS, abs=100)
    assert traffic.wait_per_step_ns == pytest.approx(2 * MS, abs=100)


def test_overlap_is_that_of_the_rank_that_arrives_last() -> None:
    """The other one waits, and has nothing left to compute beside the transfer."""
    traffic = of("""
        rank0 step |1
              gpu  [work]
              nccl       [ar............]
        rank1 step |1
              gpu  [work...........]
              nccl             [ar......]
    """)
    assert traffic.transfer_per_step_ns == 10 * MS
    assert traffic.exposed_per_step_ns == 5 * MS
    assert traffic.hidden_share == pytest.approx(0.5)


def test_the_line_tells_latency_from_bandwidth() -> None:
    traffic = of(ranks(SIZES, SIZES))
    line = traffic.line
    assert line
    assert line.beta_ns * 28e6 == pytest.approx(2e6, rel=0.01)
    assert line.alpha_ns == pytest.approx(4e6 - 2e6 * 4 / 28, rel=0.01)
    assert line.r2 == pytest.approx(1)
    assert line.residual_ns == pytest.approx(0, abs=1e3)
    assert line.spread == 8
    assert traffic.latency_share == pytest.approx(13 * line.alpha_ns / (56 * MS), rel=0.01)


def test_what_the_line_misses_is_its_residual() -> None:
    text = """
        rank# step |1
              gpu  [fwd]
              nccl      [ar@1][ar@1....][ar@3][ar@3....]
    """
    line = of(ranks(text, text)).line
    assert line
    assert line.residual_ns == pytest.approx(2 * MS, rel=1e-3)
    assert line.r2 == pytest.approx(0, abs=1e-6)


def test_waiting_is_no_latency() -> None:
    late = SIZES.replace("nccl          [ar]", "nccl      [ar....]").replace("gpu      [fwd]", "gpu      [f]")
    line = of(ranks(SIZES, late)).line
    assert line and line.alpha_ns == pytest.approx(4e6 - 2e6 * 4 / 28, rel=0.01)


def test_proportional_times_have_no_latency() -> None:
    text = f"""
        rank# step |1
              gpu  [fwd]
              nccl      [ar][ar@8{"." * 26}]
    """
    line = of(ranks(text, text)).line
    assert line and line.alpha_ns == pytest.approx(0, abs=1e3)


def test_messages_of_one_size_have_no_line() -> None:
    assert of(ONE_LATE).line is None


def test_without_sizes_there_is_no_bandwidth() -> None:
    traffic = of(ONE_LATE, metadata="nowhere")
    assert (traffic.bytes_per_step, traffic.bus_rate, traffic.line) == (0, 0, None)
    assert traffic.transfer_per_step_ns == 10 * MS


def test_kinds_and_groups_are_measured_apart() -> None:
    text = """
        rank# step |1
              gpu  [work]
              nccl       [ag....][ar/GG..][ar....]
    """
    found = communication(job(ranks(*(text.replace("GG", f"g{rank // 2}") for rank in range(4)))))
    assert [(t.kind, t.group, t.ranks.tolist(), t.size) for t in found] == [
        ("all_reduce", "g0", [0, 1], 2),
        ("all_reduce", "g1", [2, 3], 2),
        ("all_gather", "0", [0, 1, 2, 3], 4),
        ("all_reduce", "0", [0, 1, 2, 3], 4),
    ]


def test_the_source_of_a_broadcast_may_be_done_first() -> None:
    """Its part is the shortest, and no measure of the transfer."""
    traffic = of("""
        rank0 step |1
              gpu  [work....]
              nccl     [bc]      [bc.]
        rank1 step |1
              gpu  [work....]
              nccl       [bc....][bc.]
    """)
    assert traffic.transfer_ns.tolist() == [8 * MS, 5 * MS]
    assert traffic.wait_ns.tolist() == [2 * MS, 0]


def test_only_the_steps_of_the_job_count() -> None:
    traffic = of(ranks(SIZES, SIZES, steps=3))
    assert sorted(set(traffic.step.tolist())) == list(range(traffic.steps))
    assert len(traffic.step) == 13 * traffic.steps
